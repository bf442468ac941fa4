// Devices, their memory and their streams: what is owned is given back, what fails says why.

#include "train/cuda/device/device.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "tests/train/cuda/device/device_fixture.h"
#include "train/cuda/device/device_arena.h"

namespace troupe::train::tests {
namespace {

using troupe::tests::fake_cuda_inject;

constexpr std::int64_t kMiB = 1 << 20;

TEST_CASE("a device that is not there is said with what the process sees") {
  troupe::tests::fake_cuda_reset({.devices = 2});
  const auto library = CudaLibrary::over(troupe::tests::fake_cuda_table());
  const MapEnvironment environment(
      std::map<std::string, std::string, std::less<>>{{"CUDA_VISIBLE_DEVICES", "3,5"}});
  const auto third = CudaDevice::open(library, 2, environment);
  REQUIRE_FALSE(third.ok());
  CHECK(third.status().code() == Code::kInvalidArgument);
  CHECK(says(third.status(),
             "there is no GPU 2: this process sees 2 (CUDA_VISIBLE_DEVICES is '3,5')"));
  const auto devices = list_devices(*library, environment).value();
  REQUIRE(devices.size() == 2);
  CHECK(std::string(devices[0].uuid) != devices[1].uuid);

  troupe::tests::fake_cuda_reset({.devices = 0});
  const auto none = CudaDevice::open(library, 0, MapEnvironment());
  REQUIRE_FALSE(none.ok());
  CHECK(none.status().code() == Code::kUnavailable);
  CHECK(says(none.status(), "no GPU is visible"));
  CHECK(says(none.status(), "troupe.device=cpu"));

  fake_cuda_inject({.function = "device_count",
                    .code = TROUPE_CUDA_UNAVAILABLE,
                    .text = "libcuda.so.1 is not there"});
  const auto no_driver = CudaDevice::open(library, 0, MapEnvironment());
  REQUIRE_FALSE(no_driver.ok());
  CHECK(no_driver.status().code() == Code::kUnavailable);
  CHECK(says(no_driver.status(), "no GPU can be used: libcuda.so.1 is not there; `nvidia-smi`"));
  troupe::tests::fake_cuda_reset();
  CHECK(troupe::tests::fake_cuda_left().empty());
}

TEST_CASE("a device that others have filled takes no context, and says so") {
  troupe::tests::fake_cuda_reset();
  fake_cuda_inject({.function = "context_open",
                    .code = TROUPE_CUDA_OUT_OF_MEMORY,
                    .text = "cudaErrorMemoryAllocation"});
  const auto full =
      CudaDevice::open(CudaLibrary::over(troupe::tests::fake_cuda_table()), 0, MapEnvironment());
  REQUIRE_FALSE(full.ok());
  CHECK(full.status().code() == Code::kOutOfMemory);
  CHECK(says(full.status(), "GPU 0 (Fake GPU of tests): a context takes some hundred MiB"));
  CHECK(says(full.status(), "`nvidia-smi` lists them"));
  CHECK(says(full.status(), "cudaErrorMemoryAllocation"));
}

TEST_CASE("memory is counted by purpose, and a shortage says who has it and what would fit") {
  DeviceFixture f({.memory_bytes = 8 * kMiB, .granularity_bytes = kMiB});
  {
    auto parameters =
        DeviceMemory::allocate(f.device, 2 * kMiB + 1, "the weights", MemoryPurpose::kParameters)
            .value();
    CHECK(parameters.size() == 3 * kMiB);
    const MemoryLedger::Bytes held = f.device->ledger().held();
    CHECK(held[static_cast<int>(MemoryPurpose::kParameters)] == 2 * kMiB + 1);
    CHECK(held[static_cast<int>(MemoryPurpose::kOther)] == kMiB - 1);
    const CudaDevice::MemoryUse use = f.device->memory_use().value();
    CHECK(use.free_bytes == 5 * kMiB);
    CHECK(use.total_bytes == 8 * kMiB);

    const auto more = DeviceMemory::allocate(
        f.device, 6 * kMiB, "this rank's arena",
        {{MemoryPurpose::kActivations, 4 * kMiB}, {MemoryPurpose::kWorkspace, 2 * kMiB}});
    REQUIRE_FALSE(more.ok());
    const Status& status = more.status();
    CHECK(status.code() == Code::kOutOfMemory);
    CHECK(says(status, "GPU 0 (Fake GPU of tests) has not enough memory for this rank's arena"));
    CHECK(says(status, "6.0 MiB were asked for (activations 4.0 MiB, workspace 2.0 MiB)"));
    CHECK(says(status, "This process holds 3.0 MiB (parameters 2.0 MiB, other 1.0 MiB)"));
    CHECK(says(status, "CUDA, NCCL and other processes 0 B"));
    CHECK(says(status, "5.0 MiB of 8.0 MiB are free, so that 5.0 MiB would fit"));
    CHECK(says(status, "1.0 MiB are missing"));
    CHECK(says(status, "a smaller per_device_train_batch_size"));
    // What would fit does.
    CHECK(DeviceMemory::allocate(f.device, 5 * kMiB, "what fits", MemoryPurpose::kOther).ok());

    DeviceMemory moved = std::move(parameters);
    CHECK(moved.size() == 3 * kMiB);
  }
  CHECK(f.device->ledger().held() == MemoryLedger::Bytes{});
  // Of all that was held together, and of nothing that was refused.
  const MemoryLedger::Bytes peak = f.device->ledger().peak();
  CHECK(total_bytes(peak) == 8 * kMiB);
  CHECK(peak[static_cast<int>(MemoryPurpose::kParameters)] == 2 * kMiB + 1);
}

TEST_CASE("a failure in the middle of an allocation leaves nothing") {
  for (const char* function : {"memory_create", "memory_map", "host_allocate"}) {
    DeviceFixture f;
    fake_cuda_inject({.function = function, .code = TROUPE_CUDA_DEVICE_LOST, .text = "Xid 79"});
    const auto memory = DeviceMemory::allocate(f.device, kMiB, "m", MemoryPurpose::kOther);
    const auto pinned = PinnedMemory::allocate(f.device, kMiB, "p");
    CHECK(memory.ok() == (std::string(function) == "host_allocate"));
    CHECK(pinned.ok() == (std::string(function) != "host_allocate"));
    const Status status = memory.ok() ? pinned.status() : memory.status();
    CHECK(status.code() == Code::kUnavailable);
    CHECK(says(status, "Xid 79"));
  }
}

TEST_CASE("an arena lies where its plan says, and outlives its owner behind a descriptor") {
  DeviceFixture f({.granularity_bytes = 1 << 16});
  ArenaPlan plan;
  plan.add("parameters", MemoryPurpose::kParameters, 1000);
  plan.add("moments", MemoryPurpose::kOptimizerState, 8000);
  CHECK(plan.bytes() == 1024 + 8192);
  CHECK(plan.parts()[1].offset == 1024);
  UniqueFd kept;
  std::int64_t bytes = 0;
  {
    const DeviceArena arena =
        DeviceArena::allocate(f.device, plan, DeviceArena::Outlives::kProcess).value();
    CHECK(arena.part("moments").size() == 8000);
    CHECK(arena.part_of<float>("moments").size() == 2000);
    CHECK(arena.part("moments").data() == arena.part("parameters").data() + 1024);
    std::memset(arena.part("moments").data(), 42, 8000);
    kept = arena.export_descriptor().value();
    CHECK((::fcntl(kept.get(), F_GETFD) & FD_CLOEXEC) != 0);
    bytes = arena.bytes();
    CHECK(bytes == 1 << 16);
  }
  {
    const DeviceArena again = DeviceArena::import(f.device, plan, kept.get(), bytes).value();
    const auto moments = again.part("moments");
    CHECK(std::all_of(moments.begin(), moments.end(),
                      [](std::byte b) { return b == std::byte{42}; }));
    CHECK(f.device->ledger().held()[static_cast<int>(MemoryPurpose::kOptimizerState)] == 8000);
  }
  plan.add("more", MemoryPurpose::kOther, 1 << 16);
  const auto small = DeviceArena::import(f.device, plan, kept.get(), bytes);
  REQUIRE_FALSE(small.ok());
  CHECK(small.status().code() == Code::kFailedPrecondition);
  const DeviceArena mortal = DeviceArena::allocate(f.device, plan).value();
  CHECK(mortal.export_descriptor().status().code() == Code::kFailedPrecondition);
}

TEST_CASE("an arena that cannot outlive its process is refused by name") {
  DeviceFixture f({.can_export_memory = false});
  ArenaPlan plan;
  plan.add("parameters", MemoryPurpose::kParameters, 1000);
  const auto arena = DeviceArena::allocate(f.device, plan, DeviceArena::Outlives::kProcess);
  REQUIRE_FALSE(arena.ok());
  CHECK(arena.status().code() == Code::kUnsupported);
  CHECK(says(arena.status(), "cannot export memory"));
  CHECK(DeviceArena::allocate(f.device, plan).ok());
}

TEST_CASE("a wait ends at its deadline, and an event orders two streams") {
  DeviceFixture f;
  CudaStream first = CudaStream::create(f.device).value();
  CudaStream second = CudaStream::create(f.device, CudaStream::Priority::kHigh).value();
  CudaEvent event = CudaEvent::create(f.device).value();
  CHECK(event.wait("nothing").ok());  // never recorded
  CHECK(event.record(first).ok());
  CHECK(second.follow(event).ok());
  CHECK(second.wait("both").ok());
  CHECK(event.milliseconds_since(event).status().code() == Code::kInternal);  // it takes no times

  fake_cuda_inject({.function = "stream_query", .code = TROUPE_CUDA_NOT_READY});
  const Status late = first.wait("a kernel", std::chrono::milliseconds(3));
  CHECK(late.code() == Code::kDeadlineExceeded);
  CHECK(says(late, "a kernel did not end"));
}

}  // namespace
}  // namespace troupe::train::tests

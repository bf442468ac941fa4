// Communication beside arithmetic on streams, over the fake GPU.

#include "train/sharding/stream_queue.h"

#include <doctest/doctest.h>

#include "runtime/collective/cpu_communicator.h"
#include "tests/train/cuda/fake/fake_cuda.h"
#include "train/cuda/communicator/nccl_communicator.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kBytes = 1 << 20;

struct QueueDevice {
  QueueDevice() {
    troupe::tests::fake_cuda_reset();
    REQUIRE(table.context_open(0, &context) == TROUPE_CUDA_OK);
    TroupeCudaMemory* memory = nullptr;
    REQUIRE(table.memory_create(context, 3 * kBytes, 0, &memory) == TROUPE_CUDA_OK);
    REQUIRE(table.memory_map(memory, &at) == TROUPE_CUDA_OK);
    REQUIRE(table.memory_release(memory) == TROUPE_CUDA_OK);
    REQUIRE(table.stream_create(context, 0, &compute) == TROUPE_CUDA_OK);
    host = collective::make_cpu_communicator({.rank = 0, .world_size = 1}, {}).value();
    const auto library = CudaLibrary::over(table);
    communicator =
        make_nccl_communicator({.library = library, .context = context, .host = host.get()})
            .value();
    queue = make_stream_queue({.library = library,
                               .context = context,
                               .communicator = communicator.get(),
                               .compute = compute});
  }
  ~QueueDevice() {
    queue.reset();
    communicator.reset();
    table.stream_destroy(compute);
    table.memory_unmap(context, at, 3 * kBytes);
    table.context_close(context);
    CHECK(troupe::tests::fake_cuda_left().empty());
  }
  std::byte* room(int number) { return static_cast<std::byte*>(at) + number * kBytes; }
  // Many times, so that who does not wait for it comes too early.
  void copy(TroupeCudaStream* stream, int from, int to) {
    for (int i = 0; i < 30; ++i)
      REQUIRE(table.copy(stream, room(from), room(to), kBytes) == TROUPE_CUDA_OK);
  }

  const TroupeCudaTable& table = troupe::tests::fake_cuda_table();
  TroupeCudaContext* context = nullptr;
  TroupeCudaStream* compute = nullptr;
  void* at = nullptr;
  std::unique_ptr<collective::Communicator> host;
  std::unique_ptr<DeviceCommunicator> communicator;
  std::unique_ptr<CommunicationQueue> queue;
};

TEST_CASE("a piece comes after the arithmetic before it and before what waits for it") {
  QueueDevice device;
  CHECK(device.queue->overlaps());
  for (int round = 1; round <= 5; ++round) {
    REQUIRE(device.table.fill(device.compute, device.room(0), round, kBytes) == TROUPE_CUDA_OK);
    device.copy(device.compute, 0, 1);
    const auto ticket = device.queue->submit([&] {
      device.copy(device.communicator->stream(), 1, 2);
      return Status();
    });
    const auto later = device.queue->submit([] { return Status(); });
    CHECK(later == ticket + 1);
    CHECK(device.queue->wait(ticket).ok());
    device.copy(device.compute, 2, 0);
    REQUIRE(device.table.fill(device.compute, device.room(1), 0, kBytes) == TROUPE_CUDA_OK);
    REQUIRE(device.table.stream_synchronize(device.compute) == TROUPE_CUDA_OK);
    CHECK(device.room(0)[kBytes - 1] == std::byte(round));
    CHECK(device.queue->wait(ticket).ok());  // again, and out of turn: it is done
  }
  CHECK(device.queue->drain().ok());
}

TEST_CASE("draining waits for what was enqueued without a collective") {
  QueueDevice device;
  for (int round = 1; round <= 5; ++round) {
    REQUIRE(device.table.fill(device.compute, device.room(0), round, kBytes) == TROUPE_CUDA_OK);
    device.queue->submit([&] {
      device.copy(device.communicator->stream(), 0, 1);
      device.copy(device.communicator->stream(), 1, 2);
      return Status();
    });
    CHECK(device.queue->drain().ok());
    CHECK(device.room(2)[kBytes - 1] == std::byte(round));
    CHECK(device.queue->drain().ok());  // again: nothing is left to wait for
  }
}

TEST_CASE("after a failure nothing runs, and every wait returns it") {
  QueueDevice device;
  const auto good = device.queue->submit([] { return Status(); });
  const auto bad = device.queue->submit([] { return Status(Code::kAborted, "the ranks parted"); });
  bool ran = false;
  device.queue->submit([&] {
    ran = true;
    return Status();
  });
  CHECK_FALSE(ran);
  for (const auto ticket : {good, bad})
    CHECK(device.queue->wait(ticket).message() == "the ranks parted");
  CHECK(device.queue->drain().message() == "the ranks parted");
  // The other ranks are not left waiting.
  CHECK(device.communicator->barrier().message().find("the ranks parted") != std::string::npos);
}

TEST_CASE("what the device finds is told by draining") {
  QueueDevice device;
  const auto ticket = device.queue->submit([&] {
    device.copy(device.communicator->stream(), 1, 2);
    return Status();
  });
  CHECK(device.queue->wait(ticket).ok());
  device.communicator->abort(Status(Code::kActorDied, "trainer 1 died"));
  const Status status = device.queue->drain();
  CHECK(status.code() == Code::kAborted);
  CHECK(status.message().find("trainer 1 died") != std::string::npos);
}

}  // namespace
}  // namespace troupe::train

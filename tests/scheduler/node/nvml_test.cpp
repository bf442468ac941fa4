#include "scheduler/node/nvml.h"

#include <doctest/doctest.h>

#include "scheduler/node/gpu_faults.h"
#include "tests/scheduler/node/fake_nvml.h"
#include "tests/support/fake_sysfs.h"

namespace troupe::scheduler::tests {
namespace {

std::shared_ptr<Nvml> open_fake(FakeNvml& fake) {
  auto nvml = Nvml::open(fake.table());
  REQUIRE_MESSAGE(nvml.ok(), nvml.status().to_string());
  return *nvml;
}

Nvml::Inventory inventory_of(Nvml& nvml) {
  troupe::tests::FakeSysfs files;
  files.texts["/sys/bus/pci/devices/0000:01:00.0/numa_node"] = "0\n";
  files.texts["/sys/bus/pci/devices/0000:02:00.0/numa_node"] = "1\n";
  files.texts["/sys/bus/pci/devices/0000:03:00.0/numa_node"] = "-1\n";
  return nvml.devices(files).value();
}

TEST_CASE("NVML: what a GPU is") {
  FakeNvml fake;
  fake.gpus = {FakeNvml::gpu(0), FakeNvml::gpu(1), FakeNvml::gpu(2)};
  const auto nvml = open_fake(fake);
  const auto found = inventory_of(*nvml);
  CHECK(found.problems.empty());
  REQUIRE(found.devices.size() == 3);
  const wire::GpuDevice& second = found.devices[1];
  CHECK(second.index == 1);
  CHECK(second.uuid == FakeNvml::uuid(1));
  CHECK(second.name == "NVIDIA H200");
  CHECK(second.pci_bus_id == "0000:02:00.0");
  CHECK(second.minor_number == 1);
  CHECK(second.numa_node == 1);
  CHECK(second.compute_major == 9);
  CHECK(second.compute_minor == 0);
  CHECK(second.memory_total_bytes == 141ULL << 30);
  CHECK_FALSE(second.is_instance());
  CHECK(found.devices[0].numa_node == 0);
  CHECK(found.devices[2].numa_node == -1);
}

TEST_CASE("NVML: what lies between GPUs") {
  FakeNvml fake;
  fake.gpus = {FakeNvml::gpu(0), FakeNvml::gpu(1), FakeNvml::gpu(2)};
  fake.ancestors[{0, 1}] = 10;
  fake.ancestors[{0, 2}] = 30;
  const auto link_to = [](const wire::GpuDevice& from, unsigned to) {
    for (const wire::GpuLink& link : from.links) {
      if (link.peer == FakeNvml::uuid(to)) return link;
    }
    FAIL("no link");
    return wire::GpuLink{};
  };
  SUBCASE("PCI, with peer access or without") {
    const auto nvml = open_fake(fake);
    auto devices = inventory_of(*nvml).devices;
    CHECK(devices[0].links.size() == 2);
    CHECK(link_to(devices[0], 1) ==
          wire::GpuLink{FakeNvml::uuid(1), wire::GpuPath::kSwitch, 0, true});
    CHECK(link_to(devices[2], 0).path == wire::GpuPath::kHostBridge);
    CHECK(link_to(devices[1], 2).path == wire::GpuPath::kSystem);
    CHECK(inventory_of(*nvml).without_peer_access.empty());
    fake.peer_access = false;
    const auto apart = inventory_of(*nvml);
    CHECK_FALSE(link_to(apart.devices[0], 1).peer_access);
    REQUIRE(apart.without_peer_access.size() == 6);
    CHECK(apart.without_peer_access[0] == std::pair(FakeNvml::uuid(0), FakeNvml::uuid(1)));
  }
  SUBCASE("where nobody says whether there is peer access, nobody says that there is none") {
    auto table = fake.table();
    table.p2p_status = nullptr;
    auto found = inventory_of(*Nvml::open(table).value());
    CHECK_FALSE(link_to(found.devices[0], 1).peer_access);
    CHECK(found.without_peer_access.empty());
  }
  SUBCASE("NVLinks that lead to the other GPU") {
    fake.gpus[0].nvlinks = {1, 1, 2};
    fake.gpus[1].nvlinks = {0, 0};
    fake.gpus[2].nvlinks = {0};
    const auto devices = inventory_of(*open_fake(fake)).devices;
    CHECK(link_to(devices[0], 1).nvlinks == 2);
    CHECK(link_to(devices[0], 2).nvlinks == 1);
    CHECK(link_to(devices[1], 2).nvlinks == 0);
  }
  SUBCASE("NVLinks that lead to switches reach every GPU") {
    for (auto& gpu : fake.gpus) gpu.nvlinks = {-1, -1, -1, -1};
    fake.switched = true;
    const auto devices = inventory_of(*open_fake(fake)).devices;
    CHECK(link_to(devices[0], 2).nvlinks == 4);
    CHECK(link_to(devices[2], 1).nvlinks == 4);
  }
}

TEST_CASE("NVML: a divided GPU is its instances") {
  FakeNvml fake;
  fake.gpus = {FakeNvml::gpu(0), FakeNvml::gpu(1), FakeNvml::gpu(2)};
  fake.gpus[0].mig = true;
  for (unsigned i = 0; i < 2; ++i) {
    FakeNvml::Gpu instance;
    instance.uuid = "MIG-" + std::to_string(i);
    instance.name = "NVIDIA H200 MIG 1g.18gb";
    instance.total = 16ULL << 30;
    instance.bus = 7 + i;
    fake.gpus[0].instances.push_back(instance);
  }
  fake.gpus[2].mig = true;
  const auto nvml = open_fake(fake);
  const auto found = inventory_of(*nvml);
  REQUIRE(found.devices.size() == 3);
  CHECK(found.devices[0].uuid == "MIG-0");
  CHECK(found.devices[0].parent_uuid == FakeNvml::uuid(0));
  CHECK(found.devices[0].memory_total_bytes == 16ULL << 30);
  CHECK(found.devices[0].index == 0);
  CHECK(found.devices[0].links.empty());
  CHECK(found.devices[1].uuid == "MIG-1");
  CHECK(found.devices[2].uuid == FakeNvml::uuid(1));
  REQUIRE(found.problems.size() == 1);
  CHECK(found.problems[0].find("GPU 2 is in MIG mode and has no instances") != std::string::npos);
  // Its errors are those of an instance where that is known.
  REQUIRE(nvml->listen().ok());
  fake.report(0, nvml::kEventXid, 13, 8);
  fake.report(0, nvml::kEventXid, 79);
  CHECK(nvml->wait_fault(0).value()->uuid == "MIG-1");
  CHECK(nvml->wait_fault(0).value()->uuid == FakeNvml::uuid(0));
}

TEST_CASE("NVML: what is on a GPU") {
  FakeNvml fake;
  fake.gpus = {FakeNvml::gpu(0)};
  const auto nvml = open_fake(fake);
  (void)inventory_of(*nvml);
  fake.gpus[0].used = 5ULL << 30;
  // More than there was room for at first.
  for (unsigned pid = 1; pid <= 100; ++pid) fake.gpus[0].processes.push_back({pid, pid, 0, 0});
  fake.gpus[0].processes[6].used_bytes = nvml::kNoValue;
  GpuReading reading = nvml->read(FakeNvml::uuid(0));
  REQUIRE(reading.status.ok());
  CHECK(reading.used_bytes == 5ULL << 30);
  REQUIRE(reading.processes.size() == 100);
  CHECK(reading.processes[5] == GpuReading::Process{6, 6});
  CHECK_FALSE(reading.processes[6].used_bytes);
  // A driver that names no processes still tells the memory.
  fake.processes_answer = nvml::kNotSupported;
  reading = nvml->read(FakeNvml::uuid(0));
  CHECK(reading.status.ok());
  CHECK(reading.processes.empty());
  fake.gpus[0].answer = nvml::kGpuIsLost;
  reading = nvml->read(FakeNvml::uuid(0));
  CHECK(reading.lost);
  CHECK(reading.status.message().find("fell off the bus") != std::string::npos);
  CHECK(nvml->read("GPU-other").status.code() == Code::kNotFound);
}

TEST_CASE("NVML: errors of GPUs") {
  FakeNvml fake;
  fake.gpus = {FakeNvml::gpu(0), FakeNvml::gpu(1)};
  {
    const auto nvml = open_fake(fake);
    (void)inventory_of(*nvml);
    CHECK_FALSE(nvml->wait_fault(0).ok());  // nobody listens
    REQUIRE(nvml->listen().ok());
    CHECK(fake.registered == std::vector{nvml::kEventXid, nvml::kEventXid});  // what is supported
    CHECK_FALSE(nvml->wait_fault(0).value());
    fake.report(1, nvml::kEventXid, 79);
    fake.report(0, nvml::kEventDoubleBitEcc, 0);
    const auto xid = nvml->wait_fault(0).value();
    REQUIRE(xid);
    CHECK(xid->uuid == FakeNvml::uuid(1));
    CHECK(xid->xid == 79);
    const auto ecc = nvml->wait_fault(0).value();
    REQUIRE(ecc);
    CHECK(ecc->uuid == FakeNvml::uuid(0));
    CHECK_FALSE(ecc->xid);
    CHECK(fake.shutdowns == 0);
  }
  CHECK(fake.event_sets == 0);
  CHECK(fake.inits == 1);
  CHECK(fake.shutdowns == 1);
}

TEST_CASE("NVML: a GPU that has gone does not keep the others' errors from being heard") {
  FakeNvml fake;
  fake.gpus = {FakeNvml::gpu(0), FakeNvml::gpu(1), FakeNvml::gpu(2)};
  const auto nvml = open_fake(fake);
  (void)inventory_of(*nvml);
  REQUIRE(nvml->listen().ok());
  CHECK_FALSE(nvml->listen_to_the_rest());  // all are there
  fake.gpus[1].answer = nvml::kGpuIsLost;
  CHECK_FALSE(nvml->wait_fault(0).ok());
  REQUIRE(nvml->listen_to_the_rest());
  CHECK(fake.event_sets == 1);
  CHECK(fake.listened_to.size() == 2);
  fake.report(2, nvml::kEventXid, 48);
  const auto heard = nvml->wait_fault(0).value();
  REQUIRE(heard);
  CHECK(heard->uuid == FakeNvml::uuid(2));
  CHECK_FALSE(nvml->listen_to_the_rest());
  fake.gpus[0].answer = fake.gpus[2].answer = nvml::kGpuIsLost;
  CHECK_FALSE(nvml->listen_to_the_rest());  // nobody is left
}

TEST_CASE("whose fault an Xid is") {
  const auto blame = [](std::uint64_t xid) { return meaning_of({"GPU-0", xid}).blame; };
  CHECK(blame(31) == GpuBlame::kProcess);
  CHECK(blame(94) == GpuBlame::kProcess);
  for (const std::uint64_t xid : {39, 41, 70, 85, 100, 130})
    CHECK(blame(xid) == GpuBlame::kProcess);
  CHECK(blame(137) == GpuBlame::kNotice);
  CHECK(blame(63) == GpuBlame::kNotice);
  CHECK(blame(93) == GpuBlame::kNotice);
  for (const std::uint64_t xid : {46, 79, 109, 119}) CHECK(blame(xid) == GpuBlame::kDevice);
  CHECK(blame(9999) == GpuBlame::kDevice);
  CHECK(meaning_of({"GPU-0", std::nullopt}).blame == GpuBlame::kDevice);
}

TEST_CASE("NVML: what it says, and the way out") {
  FakeNvml fake;
  fake.init_answer = nvml::kVersionMismatch;
  const Status mismatch = Nvml::open(fake.table()).status();
  CHECK(mismatch.code() == Code::kFailedPrecondition);
  CHECK(mismatch.message().find("Driver/library version mismatch") != std::string::npos);
  CHECK(mismatch.message().find("reboot") != std::string::npos);
  CHECK(fake.shutdowns == 0);
  fake.init_answer = nvml::kDriverNotLoaded;
  CHECK(Nvml::open(fake.table()).status().message().find("modprobe nvidia") != std::string::npos);
  nvml::Table old = fake.table();
  old.pci_info = nullptr;
  const Status missing = Nvml::open(old).status();
  CHECK(missing.code() == Code::kUnsupported);
  CHECK(missing.message().find("nvmlDeviceGetPciInfo_v3") != std::string::npos);

  // One GPU that does not answer leaves the others.
  fake.init_answer = nvml::kSuccess;
  fake.gpus = {FakeNvml::gpu(0), FakeNvml::gpu(1)};
  fake.gpus[0].answer = nvml::kGpuIsLost;
  const auto found = inventory_of(*open_fake(fake));
  REQUIRE(found.devices.size() == 1);
  CHECK(found.devices[0].index == 1);
  REQUIRE(found.problems.size() == 1);
  CHECK(found.problems[0].find("GPU 0") != std::string::npos);

  // An old library has fewer functions.
  nvml::Table little = fake.table();
  little.minor_number = nullptr;
  little.compute_capability = nullptr;
  little.processes = nullptr;
  little.mig_mode = nullptr;
  little.common_ancestor = nullptr;
  little.p2p_status = nullptr;
  little.nvlink_state = nullptr;
  little.event_set_create = nullptr;
  fake.gpus[0].answer = nvml::kSuccess;
  auto nvml = Nvml::open(little).value();
  const auto devices = inventory_of(*nvml).devices;
  REQUIRE(devices.size() == 2);
  CHECK(devices[0].minor_number == -1);
  CHECK(devices[0].links[0] == wire::GpuLink{FakeNvml::uuid(1)});
  CHECK(nvml->read(devices[0].uuid).status.ok());
  CHECK(nvml->listen().code() == Code::kUnsupported);
}

}  // namespace
}  // namespace troupe::scheduler::tests

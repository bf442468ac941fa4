#include "scheduler/node/resources_detect.h"

#include <doctest/doctest.h>

#include <map>

#include "tests/scheduler/node/fake_nvml.h"
#include "tests/support/fake_sysfs.h"

namespace troupe::scheduler {
namespace {

struct FakeMachine final : Machine {
  int cpus = 8;
  tests::FakeNvml* nvml_here = nullptr;
  int affinity_cpu_count() const override { return cpus; }
  Result<std::shared_ptr<Nvml>> nvml() const override {
    if (nvml_here == nullptr) return Status(Code::kNotFound, "no NVML here");
    return Nvml::open(nvml_here->table());
  }
};

TEST_CASE("CPUs: of the affinity what the control group grants") {
  troupe::tests::FakeSysfs files;
  FakeMachine machine;
  CHECK(detect_cpu_count(files, machine) == 8);
  files.texts["/sys/fs/cgroup/cpu.max"] = "250000 100000\n";
  CHECK(detect_cpu_count(files, machine) == 3);
}

TEST_CASE("GPUs: NVML's, or one a device file") {
  troupe::tests::FakeSysfs files;
  FakeMachine machine;
  tests::FakeNvml nvml;
  nvml.gpus = {tests::FakeNvml::gpu(0), tests::FakeNvml::gpu(1), tests::FakeNvml::gpu(2)};
  const auto detect = [&](std::map<std::string, std::string, std::less<>> environment = {}) {
    return detect_gpus(files, MapEnvironment(std::move(environment)), machine);
  };
  const auto has_none = [&] {
    const auto found = detect();
    CHECK(found.gpus.devices.empty());
    CHECK(found.problems.empty());
    CHECK_FALSE(found.nvml);
  };
  has_none();
  machine.nvml_here = &nvml;
  // Under WSL there are no device files.
  CHECK(detect().gpus.devices.size() == 3);
  // The library alone, without a driver, is nothing to speak of.
  nvml.init_answer = nvml::kDriverNotLoaded;
  has_none();
  nvml.init_answer = nvml::kSuccess;
  files.devices = {"null", "nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"};
  auto found = detect();
  CHECK(found.gpus.devices.size() == 3);
  CHECK(found.gpus.readings.size() == 3);
  CHECK(found.gpus.readings[0].used_bytes == 600ULL << 20);
  CHECK(found.nvml);
  CHECK(found.problems.empty());
  found = detect({{"CUDA_VISIBLE_DEVICES", "2,0"}});
  REQUIRE(found.gpus.devices.size() == 2);
  CHECK(found.gpus.devices[0].uuid == tests::FakeNvml::uuid(2));
  CHECK(found.gpus.readings[1].uuid == tests::FakeNvml::uuid(0));
  CHECK(found.problems.empty());
  // Of several kinds, an index is not the same everywhere.
  nvml.gpus[1].name = "NVIDIA L4";
  REQUIRE(detect({{"CUDA_VISIBLE_DEVICES", "0"}}).problems.size() == 1);
  CHECK(detect({{"CUDA_VISIBLE_DEVICES", "0"}, {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}})
            .problems.empty());
  CHECK(detect({{"CUDA_VISIBLE_DEVICES", tests::FakeNvml::uuid(0)}}).problems.empty());

  nvml.init_answer = nvml::kVersionMismatch;
  found = detect({{"CUDA_VISIBLE_DEVICES", "1"}});
  CHECK_FALSE(found.nvml);
  REQUIRE(found.gpus.devices.size() == 1);
  CHECK(found.gpus.devices[0].index == 1);
  CHECK(found.gpus.devices[0].uuid.empty());
  CHECK(found.gpus.readings.empty());
  REQUIRE(found.problems.size() == 1);
  CHECK(found.problems[0].find("version mismatch") != std::string::npos);

  const auto resources = detect_resources(files, machine, detect().gpus).value();
  CHECK(resources.at("GPU") == 2 * wire::kResourceUnit);
  CHECK_FALSE(detect_resources(files, machine, {}).value().contains("GPU"));
}

TEST_CASE("this machine has something to offer") {
  PosixFileSystem files;
  const auto resources = detect_resources(files, SystemMachine(), {}).value();
  CHECK(resources.at("CPU") >= wire::kResourceUnit);
  CHECK(resources.at("memory") > 0);
}

}  // namespace
}  // namespace troupe::scheduler

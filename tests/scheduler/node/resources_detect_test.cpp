#include "scheduler/node/resources_detect.h"

#include <doctest/doctest.h>

#include <map>

#include "tests/scheduler/node/fake_nvml.h"
#include "tests/scheduler/node/fake_sysfs.h"

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

TEST_CASE("CPUs: affinity, quotas of both kinds, rounded up, at least one") {
  tests::FakeSysfs files;
  FakeMachine machine;
  CHECK(detect_cpu_count(files, machine) == 8);
  files.texts["/sys/fs/cgroup/cpu.max"] = "max 100000\n";
  CHECK(detect_cpu_count(files, machine) == 8);
  files.texts["/sys/fs/cgroup/cpu.max"] = "250000 100000\n";
  CHECK(detect_cpu_count(files, machine) == 3);
  files.texts["/sys/fs/cgroup/cpu.max"] = "1000 100000\n";
  CHECK(detect_cpu_count(files, machine) == 1);
  files.texts.erase("/sys/fs/cgroup/cpu.max");
  files.texts["/sys/fs/cgroup/cpu/cpu.cfs_quota_us"] = "-1\n";
  files.texts["/sys/fs/cgroup/cpu/cpu.cfs_period_us"] = "100000\n";
  CHECK(detect_cpu_count(files, machine) == 8);
  files.texts["/sys/fs/cgroup/cpu/cpu.cfs_quota_us"] = "150000\n";
  CHECK(detect_cpu_count(files, machine) == 2);
  // The limit of a group above this process's own counts.
  files.texts["/proc/self/cgroup"] = "3:cpuset:/x\n0::/pods/one/me\n";
  files.texts["/sys/fs/cgroup/pods/cpu.max"] = "100000 100000\n";
  CHECK(detect_cpu_count(files, machine) == 1);
  files.texts["/sys/fs/cgroup/pods/cpu.max"] = "nonsense";
  CHECK(detect_cpu_count(files, machine) == 2);
  machine.cpus = 0;
  CHECK(detect_cpu_count(files, machine) == 1);
}

TEST_CASE("memory: the machine's, or the least limit") {
  tests::FakeSysfs files;
  CHECK(detect_memory_bytes(files).value() == 16384 * 1024);
  files.texts["/sys/fs/cgroup/memory.max"] = "max\n";
  CHECK(detect_memory_bytes(files).value() == 16384 * 1024);
  files.texts["/sys/fs/cgroup/memory.max"] = "1048576\n";
  CHECK(detect_memory_bytes(files).value() == 1048576);
  files.texts["/proc/self/cgroup"] = "4:cpu,memory:/job\n";
  files.texts["/sys/fs/cgroup/memory/job/memory.limit_in_bytes"] = "4096\n";
  CHECK(detect_memory_bytes(files).value() == 4096);
  files.texts["/proc/meminfo"] = "nothing";
  CHECK(detect_memory_bytes(files).status().code() == Code::kDataLoss);
}

TEST_CASE("available memory: the machine's, or what the nearest limit leaves") {
  tests::FakeSysfs files;
  CHECK(detect_available_memory(files).status().code() == Code::kDataLoss);
  files.texts["/proc/meminfo"] = "MemTotal: 16384 kB\nMemFree: 1 kB\nMemAvailable: 8192 kB\n";
  const auto machine = detect_available_memory(files).value();
  CHECK(machine.available_bytes == 8192 * 1024);
  CHECK(machine.total_bytes == 16384 * 1024);
  CHECK(!machine.group_limited);
  // A limit that leaves more does not count.
  files.texts["/sys/fs/cgroup/memory.max"] = "16777216\n";
  files.texts["/sys/fs/cgroup/memory.current"] = "1000000\n";
  CHECK(detect_available_memory(files).value().available_bytes == 8192 * 1024);
  files.texts["/sys/fs/cgroup/memory.current"] = "12000000\n";
  const auto limited = detect_available_memory(files).value();
  CHECK(limited.available_bytes == 16777216 - 12000000);
  CHECK(limited.group_limited);
  // Cached files can go.
  files.texts["/sys/fs/cgroup/memory.stat"] = "anon 5\ninactive_file 2000000\nfile 1\n";
  CHECK(detect_available_memory(files).value().available_bytes == 16777216 - 10000000);
  // Version 1, further down, and beyond its limit.
  files.texts["/proc/self/cgroup"] = "4:memory:/run/job\n";
  files.texts["/sys/fs/cgroup/memory/run/memory.limit_in_bytes"] = "4096\n";
  files.texts["/sys/fs/cgroup/memory/run/memory.usage_in_bytes"] = "5000\n";
  CHECK(detect_available_memory(files).value().available_bytes == 0);
  files.texts["/sys/fs/cgroup/memory/run/memory.stat"] =
      "inactive_file 9\ntotal_inactive_file 1000\n";
  CHECK(detect_available_memory(files).value().available_bytes == 96);
}

TEST_CASE("GPUs: NVML's, or one a device file") {
  tests::FakeSysfs files;
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

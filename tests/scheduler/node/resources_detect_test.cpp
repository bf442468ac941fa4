#include "scheduler/node/resources_detect.h"

#include <doctest/doctest.h>

#include <map>

namespace troupe::scheduler {
namespace {

struct FakeMachine final : Machine {
  int cpus = 8;
  std::optional<int> gpus;
  int affinity_cpu_count() const override { return cpus; }
  std::optional<int> nvml_gpu_count() const override { return gpus; }
};

// Texts by path; nothing can be written.
struct FakeFiles final : FileSystem {
  std::map<std::string, std::string> texts = {
      {"/proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n"}};
  std::vector<std::string> devices;

  static Status refused() { return error(Code::kUnsupported, "read only"); }
  Result<std::unique_ptr<WritableFile>> create(const std::string&, unsigned) override {
    return refused();
  }
  Result<std::unique_ptr<WritableFile>> open_append(const std::string&, unsigned) override {
    return refused();
  }
  Result<std::string> read(const std::string& path, std::uint64_t) override {
    const auto found = texts.find(path);
    if (found == texts.end()) return error(Code::kNotFound, "no {}", path);
    return found->second;
  }
  Result<std::unique_ptr<MappedFile>> map(const std::string&) override { return refused(); }
  Status rename(const std::string&, const std::string&) override { return refused(); }
  Status remove(const std::string&) override { return refused(); }
  Status remove_tree(const std::string&) override { return refused(); }
  Status create_directories(const std::string&, unsigned) override { return refused(); }
  Result<std::vector<DirectoryEntry>> list(const std::string&) override {
    std::vector<DirectoryEntry> entries;
    for (const auto& name : devices) entries.push_back({name});
    return entries;
  }
  bool exists(const std::string& path) override { return texts.contains(path); }
  Result<std::uint64_t> size(const std::string&) override { return refused(); }
  Status sync_directory(const std::string&) override { return refused(); }
};

TEST_CASE("CPUs: affinity, quotas of both kinds, rounded up, at least one") {
  FakeFiles files;
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
  FakeFiles files;
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
  FakeFiles files;
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

TEST_CASE("GPUs: none without devices, by library or by device, CUDA_VISIBLE_DEVICES") {
  FakeFiles files;
  FakeMachine machine;
  machine.gpus = 4;
  CHECK(detect_gpu_count(files, MapEnvironment(), machine) == 0);
  files.devices = {"null", "nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"};
  CHECK(detect_gpu_count(files, MapEnvironment(), machine) == 4);
  machine.gpus.reset();
  CHECK(detect_gpu_count(files, MapEnvironment(), machine) == 2);
  const auto visible = [&](const std::string& value) {
    return detect_gpu_count(files, MapEnvironment({{"CUDA_VISIBLE_DEVICES", value}}), machine);
  };
  CHECK(visible("") == 0);
  CHECK(visible("1") == 1);
  CHECK(visible("0,1") == 2);
  CHECK(visible("-1") == 0);
  CHECK(visible("0,-1,1") == 1);
  CHECK(visible("7,0") == 0);
  CHECK(visible("GPU-8932f937,GPU-12,GPU-13") == 2);
}

TEST_CASE("this machine has something to offer") {
  PosixFileSystem files;
  const auto resources = detect_resources(files, SystemEnvironment(), SystemMachine()).value();
  CHECK(resources.at("CPU") >= wire::kResourceUnit);
  CHECK(resources.at("memory") > 0);
}

}  // namespace
}  // namespace troupe::scheduler

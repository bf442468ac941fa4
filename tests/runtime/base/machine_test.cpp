#include "runtime/base/machine.h"

#include <doctest/doctest.h>

#include "tests/support/fake_sysfs.h"

namespace troupe {
namespace {

TEST_CASE("CPUs: what there is, quotas of both kinds, rounded up, at least one") {
  tests::FakeSysfs files;
  CHECK(granted_cpu_count(files, 8) == 8);
  files.texts["/sys/fs/cgroup/cpu.max"] = "max 100000\n";
  CHECK(granted_cpu_count(files, 8) == 8);
  files.texts["/sys/fs/cgroup/cpu.max"] = "250000 100000\n";
  CHECK(granted_cpu_count(files, 8) == 3);
  files.texts["/sys/fs/cgroup/cpu.max"] = "1000 100000\n";
  CHECK(granted_cpu_count(files, 8) == 1);
  files.texts.erase("/sys/fs/cgroup/cpu.max");
  files.texts["/sys/fs/cgroup/cpu/cpu.cfs_quota_us"] = "-1\n";
  files.texts["/sys/fs/cgroup/cpu/cpu.cfs_period_us"] = "100000\n";
  CHECK(granted_cpu_count(files, 8) == 8);
  files.texts["/sys/fs/cgroup/cpu/cpu.cfs_quota_us"] = "150000\n";
  CHECK(granted_cpu_count(files, 8) == 2);
  // The limit of a group above this process's own counts.
  files.texts["/proc/self/cgroup"] = "3:cpuset:/x\n0::/pods/one/me\n";
  files.texts["/sys/fs/cgroup/pods/cpu.max"] = "100000 100000\n";
  CHECK(granted_cpu_count(files, 8) == 1);
  files.texts["/sys/fs/cgroup/pods/cpu.max"] = "nonsense";
  CHECK(granted_cpu_count(files, 8) == 2);
  CHECK(granted_cpu_count(files, 0) == 1);
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

}  // namespace
}  // namespace troupe

#include "scheduler/node/node_usage.h"

#include <doctest/doctest.h>

#include "tests/support/faulty_file_system.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace std::chrono_literals;

namespace {

void machine(troupe::tests::FaultyFileSystem& files, const std::string& cpu) {
  REQUIRE(files.create_directories("/proc").ok());
  const auto write = [&](const std::string& path, const std::string& text) {
    REQUIRE(files.create(path).value()->append(std::string_view(text)).ok());
  };
  write("/proc/stat", cpu + "\ncpu0 1 2 3 4\n");
  write("/proc/meminfo", "MemTotal:       1000 kB\nMemFree: 100 kB\nMemAvailable:    400 kB\n");
}

}  // namespace

TEST_CASE("busy time is all but idle and waiting for disks") {
  troupe::tests::FaultyFileSystem files;
  machine(files, "cpu  100 20 30 5000 600 7 8 9 50 0");
  CHECK(cpu_busy_us(files, 100) == (100 + 20 + 30 + 7 + 8 + 9) * 10'000);
  machine(files, "cpu  1 2 3 4");
  CHECK(cpu_busy_us(files, 100) == 6 * 10'000);
  machine(files, "cpu  1 2");
  CHECK_FALSE(cpu_busy_us(files, 100));
  CHECK_FALSE(cpu_busy_us(files, 0));
}

TEST_CASE("a node measures now and then, and says nothing where the machine does not") {
  troupe::tests::FaultyFileSystem files;
  machine(files, "cpu  100 20 30 5000 600 7 8 9 50 0");
  UsageMeter meter(files);
  const TimePoint t0{};
  const auto usage = meter.measure(t0);
  REQUIRE(usage);
  CHECK(usage->memory_total_bytes == 1000 * 1024);
  CHECK(usage->memory_used_bytes == 600 * 1024);
  CHECK_FALSE(meter.measure(t0 + 1s));
  CHECK(meter.measure(t0 + 10s));
  REQUIRE(files.remove("/proc/stat").ok());
  CHECK_FALSE(meter.measure(t0 + 20s));
}

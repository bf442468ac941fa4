// Notes of runs in ~/.troupe/runs.

#include "train/report/run_registry.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test_data.h"

namespace troupe::train {
namespace {

RunRecord record_of(int number) {
  return {.run = fmt::format("run-{:08x}", number),
          .output_dir = fmt::format("/tmp/out-{}", number),
          .config = "/tmp/x.yaml",
          .host_name = "here",
          .pid = 1,
          .process_start = 5,
          .started_unix_us = 1'770'404'400'000'000 + number};
}

TEST_CASE("a run is found by its id, by half of it, and by its output directory") {
  tests::TemporaryDirectory directory;
  PosixFileSystem files;
  RunRegistry registry(files, directory.file("deep/runs"));
  CHECK(registry.list().value().empty());
  CHECK(registry.find("run-1").status().message().find("nor any other") != std::string::npos);
  RunRecord record = record_of(0x1a2b);
  REQUIRE(registry.write(record).ok());
  CHECK(registry.find("run-00001a2b").value() == record);
  CHECK(registry.find("00001a2b").value() == record);
  record.ended_unix_us = record.started_unix_us + 5;
  record.end = error(Code::kDataLoss, "a \"bad\" end");
  record.last_step = 12;
  REQUIRE(registry.write(record).ok());
  CHECK(registry.find("run-00001a2b").value() == record);
  CHECK(registry.find_output("/tmp/out-6699").value() == record);
  CHECK_FALSE(registry.find_output("/tmp/out").value().has_value());
  CHECK(files.permissions(directory.file("deep/runs/run-00001a2b.json")).value() == 0600);
  const auto missing = registry.find("run-ffff");
  CHECK(missing.status().code() == Code::kNotFound);
  CHECK(
      missing.status().message() ==
      "there is no run 'run-ffff'; the newest are:\n  run-00001a2b (2026-02-06 19:00, ended badly "
      "in /tmp/out-6699)");
  // An id is no way to other files.
  REQUIRE(write_file_atomically(files, directory.file("deep/secret.json"), "{}").ok());
  CHECK(registry.find("../secret").status().code() == Code::kNotFound);
  CHECK(registry.write({.run = "../x"}).code() == Code::kInvalidArgument);
}

TEST_CASE("the newest runs are kept, the oldest go") {
  tests::TemporaryDirectory directory;
  PosixFileSystem files;
  RunRegistry registry(files, directory.path());
  REQUIRE(write_file_atomically(files, directory.file("other.json"), "{}").ok());
  // Notes as they lie there, without the price of writing each durably.
  for (int i = 0; i < 205; ++i) {
    const auto record = record_of(i);
    auto file = files.create(directory.file(record.run + ".json")).value();
    REQUIRE(file->append(fmt::format(R"({{"run":"{}","output_dir":"/o","started_unix_us":{}}})",
                                     record.run, record.started_unix_us))
                .ok());
    REQUIRE(file->close().ok());
  }
  REQUIRE(registry.write(record_of(300)).ok());
  const auto records = registry.list().value();
  REQUIRE(records.size() == RunRegistry::kRunsMax);
  CHECK(records.front().run == "run-0000012c");
  CHECK(records[1].run == fmt::format("run-{:08x}", 204));
  CHECK(records.back().run == fmt::format("run-{:08x}", 6));
  CHECK(files.exists(directory.file("other.json")));
}

TEST_CASE("a driver is told from a later process of the same number, and from a dead one") {
  PosixFileSystem files;
  RunRecord record = record_of(1);
  record.pid = ::getpid();
  record.process_start = process_start_ticks(files, record.pid);
  CHECK(record.process_start > 0);
  CHECK(driver_state(files, record, "here") == DriverState::kRuns);
  CHECK(driver_state(files, record, "elsewhere") == DriverState::kUnknown);
  record.process_start += 1;
  CHECK(driver_state(files, record, "here") == DriverState::kGone);
  record.process_start -= 1;
  record.ended_unix_us = 9;
  CHECK(driver_state(files, record, "here") == DriverState::kGone);

  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  CHECK(process_start_ticks(files, child) == 0);  // ended, not waited for yet
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(process_start_ticks(files, child) == 0);
}

}  // namespace
}  // namespace troupe::train

// The note of the head that was started last on a machine.

#include "scheduler/client/cluster_record.h"

#include <doctest/doctest.h>

#include "tests/support/faulty_file_system.h"

using namespace troupe;
using namespace troupe::scheduler;

// A head writes it on its loop, with those who wait for it outside: a disk that is slow to sync
// must not hold it up. What is synced survives a power loss, which ends the head that it names.
TEST_CASE("a record is whole for who reads it, and waits for no disk") {
  tests::FaultyFileSystem files;
  const std::string path = "/home/.troupe/current";
  const ClusterRecord first{"127.0.0.1", 6379, "/token", 7, "here", false};
  ClusterRecord second = first;
  second.pid = 8;
  REQUIRE(write_cluster_record(files, path, first).ok());
  CHECK(read_cluster_record(files, path).value() == first);
  files.fail_operation(2, Code::kResourceExhausted);
  CHECK(write_cluster_record(files, path, second).code() == Code::kResourceExhausted);
  CHECK(read_cluster_record(files, path).value() == first);
  CHECK(files.snapshot("/home/.troupe").size() == 1);
  REQUIRE(write_cluster_record(files, path, second).ok());
  CHECK(read_cluster_record(files, path).value() == second);
  files.revive(tests::FaultyFileSystem::Survives::kSyncedOnly);
  CHECK(read_cluster_record(files, path).status().code() == Code::kNotFound);
}

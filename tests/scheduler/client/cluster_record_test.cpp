// The note of the heads that run on a machine.

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

TEST_CASE("a newer head that ends leaves the ones before it to be found") {
  tests::FaultyFileSystem files;
  const std::string path = "/home/.troupe/current";
  // Of another machine, so that no process of this one decides whether they live.
  const ClusterRecord older{"10.0.0.1", 6379, "/old", 7, "elsewhere", false};
  const ClusterRecord newer{"10.0.0.1", 6380, "/new", 8, "elsewhere", true};
  const ClusterRecord gone{"10.0.0.2", 6379, "/gone", 1 << 30, host_name(), false};
  REQUIRE(write_cluster_record(files, path, older).ok());
  REQUIRE(write_cluster_record(files, path, gone).ok());
  CHECK(read_cluster_record(files, path).value() == older);  // the newest one that lives
  REQUIRE(write_cluster_record(files, path, newer).ok());
  CHECK(read_cluster_record(files, path).value() == newer);

  SUBCASE("the newer one ends first") {
    REQUIRE(remove_cluster_record(files, path, newer).ok());
    CHECK(read_cluster_record(files, path).value() == older);
    REQUIRE(remove_cluster_record(files, path, older).ok());
  }
  SUBCASE("the older one ends first") {
    REQUIRE(remove_cluster_record(files, path, older).ok());
    CHECK(read_cluster_record(files, path).value() == newer);
    REQUIRE(remove_cluster_record(files, path, newer).ok());
  }
  CHECK(read_cluster_record(files, path).status().code() == Code::kNotFound);
}

TEST_CASE("a head that comes back takes the place of the one that was killed") {
  tests::FaultyFileSystem files;
  const std::string path = "/home/.troupe/current";
  const ClusterRecord killed{"10.0.0.1", 6379, "/token", 7, "elsewhere", false};
  ClusterRecord back = killed;
  back.pid = 8;
  REQUIRE(write_cluster_record(files, path, killed).ok());
  REQUIRE(write_cluster_record(files, path, back).ok());
  REQUIRE(remove_cluster_record(files, path, back).ok());
  CHECK(read_cluster_record(files, path).status().code() == Code::kNotFound);
}

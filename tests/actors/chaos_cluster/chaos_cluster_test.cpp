#include "troupe/chaos_cluster.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "actors/chaos_cluster/marked_processes.h"
#include "tests/actors/chaos_cluster/tally.h"
#include "tests/support/test_data.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(30s); }

struct Struck {
  std::unique_ptr<ChaosCluster> cluster = ChaosCluster::start({.nodes = 2}, soon()).value();
  Cluster driver = cluster
                       ->connect({.program = bin_dir() + "/test_actors_chaos_cluster_host",
                                  .follow_output = false})
                       .value();
  ActorHandle<Tally> tally =
      driver.spawn<Tally>({.max_restarts = -1, .label_preference = on_node(1)}).value();

  std::int64_t add(std::int64_t number) {
    return tally.with({.timeout = 30s, .retry = true}).call<&Tally::add>(number).get(30s).value();
  }
  int node() { return cluster->node_of(driver, tally, soon()).value(); }
  int processes_of(int node) const {
    int count = 0;
    for (const auto& process : chaos::marked_processes(cluster->mark()))
      count += process.node == node && process.state != 'Z';
    return count;
  }
};

TEST_CASE_FIXTURE(Struck, "a node that is killed is gone whole; another one joins in its place") {
  CHECK(add(5) == 5);
  CHECK(node() == 1);
  CHECK(processes_of(1) >= 3);
  REQUIRE(cluster->kill_node(1).ok());
  CHECK(processes_of(1) == 0);
  CHECK_FALSE(cluster->is_up(1));
  CHECK(cluster->kill_node(1).code() == Code::kFailedPrecondition);
  // The actor goes on on the other one, and begins anew: it saves nothing.
  CHECK(add(7) == 7);
  CHECK(node() == 0);
  REQUIRE(cluster->join(1).ok());
  REQUIRE(cluster->wait_for_node(1, soon()).ok());
  REQUIRE(cluster->kill_node(0).ok());
  CHECK(add(8) == 8);
  CHECK(node() == 1);
}

TEST_CASE_FIXTURE(Struck, "a node that leaves drains itself; one that is stopped goes on") {
  CHECK(add(5) == 5);
  REQUIRE(cluster->stop_node(1).ok());
  auto late = tally.with({.timeout = 30s}).call<&Tally::add>(1);
  REQUIRE(cluster->continue_node(1).ok());
  CHECK(late.get(30s).value() == 6);
  REQUIRE(cluster->leave(1).ok());
  CHECK(processes_of(1) == 0);
  CHECK(add(7) == 7);
  CHECK(node() == 0);
  // One that stands still does not.
  REQUIRE(cluster->stop_node(0).ok());
  const Status stays = cluster->leave(0, 50ms);
  CHECK(stays.code() == Code::kDeadlineExceeded);
  CHECK(stays.message().find("node 0 did not leave (kill_node()") != std::string::npos);
  CHECK(cluster->is_up(0));
  REQUIRE(cluster->kill_node(0).ok());
}

TEST_CASE_FIXTURE(Struck, "connections to a node are cut, slowed down and stalled") {
  CHECK(add(5) == 5);
  cluster->cut(1);
  CHECK(add(1) == 6);
  cluster->slow(1, 20ms);
  CHECK(add(1) == 7);
  cluster->mend(1);
  CHECK(add(1) == 8);
  CHECK(cluster->join(1).code() == Code::kFailedPrecondition);
  CHECK(cluster->leave(2).code() == Code::kInvalidArgument);
}

TEST_CASE("nothing is left of it, and what it lacks is named") {
  std::string folder, mark;
  {
    const Struck struck;
    folder = std::filesystem::path(struck.cluster->home()).parent_path();
    mark = struck.cluster->mark();
    CHECK(std::filesystem::exists(folder));
  }
  CHECK_FALSE(std::filesystem::exists(folder));
  CHECK(chaos::marked_processes(mark).empty());
  CHECK(ChaosCluster::start({.program = "/nowhere/troupe"}, soon()).status().code() ==
        Code::kNotFound);
  CHECK(ChaosCluster::start({.nodes = 0}, soon()).status().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace troupe::tests

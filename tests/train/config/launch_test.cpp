#include "train/config/launch.h"

#include <doctest/doctest.h>

#include "tests/support/text.h"

namespace troupe::train {
namespace {

using troupe::tests::contains;

struct Read {
  LaunchEnvironment launch;
  Status status;
};

Read read(std::map<std::string, std::string, std::less<>> values) {
  const SourceDocument source;
  Problems problems(source);
  const MapEnvironment environment(std::move(values));
  Read out;
  out.launch = read_launch_environment(environment, problems);
  check_launch(out.launch, TrainConfig(), environment, problems);
  out.status = problems.status();
  return out;
}

TEST_CASE("the launch environment is read") {
  const auto [launch, status] = read({{"USE_RAY", "1"},
                                      {"NNODES", "2"},
                                      {"NODE_RANK", "1"},
                                      {"NPROC_PER_NODE", "4"},
                                      {"MASTER_ADDR", "192.168.0.1"},
                                      {"MASTER_PORT", "29500"},
                                      {"MAX_RESTARTS", "0"},
                                      {"AXOLOTL_NCCL_TIMEOUT", "900"},
                                      {"TROUPE_ADDRESS", ""}});
  REQUIRE_MESSAGE(status.ok(), status.message());
  CHECK(launch.node_count() == 2);
  CHECK(launch.node_rank == 1);
  CHECK(launch.master_port == 29500);
  CHECK(launch.max_restarts == 0);
  CHECK(launch.wait_timeout_s == 900);
  CHECK_FALSE(launch.address);
  CHECK(read({}).launch.node_count() == 1);
}

TEST_CASE("torchrun's own variables say the same") {
  const auto [launch, status] = read({{"PET_NNODES", "2:2"},
                                      {"PET_NODE_RANK", "1"},
                                      {"PET_NPROC_PER_NODE", "auto"},
                                      {"PET_MASTER_ADDR", "a"},
                                      {"PET_MASTER_PORT", "6379"},
                                      {"MASTER_PORT", "6379"},
                                      {"PET_MAX_RESTARTS", "5"}});
  REQUIRE_MESSAGE(status.ok(), status.message());
  CHECK(launch.nnodes == 2);
  CHECK(launch.node_rank == 1);
  CHECK_FALSE(launch.nproc_per_node);
  CHECK(launch.master_addr == "a");
  CHECK(launch.master_port == 6379);
  CHECK(launch.max_restarts == 5);
  CHECK(read({{"PET_NPROC_PER_NODE", "3"}}).launch.nproc_per_node == 3);
  CHECK(read({{"NNODES", "2"}, {"PET_NNODES", "3"}}).status.message() ==
        "environment NNODES=2 and PET_NNODES=3 disagree; unset one of them");
}

TEST_CASE("torchrun's rendezvous says where nodes meet, and by which name") {
  using Values = std::map<std::string, std::string, std::less<>>;
  const Values pet = {
      {"PET_NNODES", "1:4"}, {"PET_RDZV_ID", "job"}, {"PET_RDZV_ENDPOINT", "h:2000"}};
  const auto with = [&](Values more) {
    more.insert(pet.begin(), pet.end());
    return read(std::move(more));
  };
  const auto [launch, status] = with({});
  REQUIRE_MESSAGE(status.ok(), status.message());
  CHECK(launch.rendezvous == "job");
  CHECK(launch.numbered_on_arrival());
  CHECK(launch.master_addr == "h");
  CHECK(launch.master_port == 2000);
  CHECK(with({{"PET_RDZV_ENDPOINT", "[fd00::1]:7"}}).launch.master_addr == "fd00::1");
  CHECK(with({{"PET_RDZV_ENDPOINT", "[fd00::1]"}}).launch.master_port == 29400);
  CHECK(with({{"MASTER_ADDR", "h"}, {"MASTER_PORT", "2000"}}).status.ok());
  CHECK(with({{"MASTER_PORT", "2001"}}).status.message() ==
        "environment MASTER_PORT=2001 and PET_RDZV_ENDPOINT=h:2000 disagree; unset one of them");
  CHECK(contains(with({{"PET_RDZV_ENDPOINT", ":7"}}).status.message(), "no address before"));
  CHECK(contains(with({{"PET_RDZV_ENDPOINT", "h:x"}}).status.message(), "'x' is no whole number"));
  CHECK(contains(with({{"RDZV_ID", "other"}}).status.message(),
                 "RDZV_ID=other and PET_RDZV_ID=job disagree"));
  // What torchrun has on one node.
  CHECK(read({{"PET_RDZV_ENDPOINT", "localhost:0"}}).status.ok());
  // What was set is what is named.
  CHECK(contains(read({{"PET_NNODES", "1:4"}}).status.message(),
                 "environment PET_NNODES=1:4: nodes that come and go need RDZV_ID"));
  CHECK(contains(read({{"PET_NNODES", "2"}, {"PET_RDZV_ID", "job"}}).status.message(),
                 "environment PET_RDZV_ID=job: 2 nodes meet at MASTER_ADDR"));
}

TEST_CASE("bad values name their variable") {
  const auto message = [](const char* name, const char* value) {
    const auto status = read({{name, value}}).status;
    REQUIRE_FALSE(status.ok());
    return status.message();
  };
  CHECK(message("NNODES", "two") == "environment NNODES: 'two' is no whole number");
  CHECK(message("NNODES", "0") == "environment NNODES: 0 is not between 1 and 65536");
  CHECK(contains(message("MASTER_PORT", "70000"), "MASTER_PORT"));
  CHECK(contains(message("NODE_RANK", "1"), "not below NNODES"));
  CHECK(contains(message("MAX_RESTARTS", "-1"), "MAX_RESTARTS"));
  CHECK(contains(read({{"NNODES", "65536"}, {"NPROC_PER_NODE", "4096"}, {"MASTER_ADDR", "h"}})
                     .status.message(),
                 "NNODES=65536 and NPROC_PER_NODE=4096: a run has at most 65536 trainers"));
  // All of them at once.
  const auto both = read({{"NNODES", "x"}, {"MASTER_PORT", "0"}}).status.message();
  CHECK(contains(both, "NNODES"));
  CHECK(contains(both, "MASTER_PORT"));
}

TEST_CASE("a number of nodes, and two between which it may change") {
  const auto nodes = [](const char* least, const char* most) {
    return read({{"MIN_NNODES", least}, {"MAX_NNODES", most}});
  };
  CHECK(nodes("2", "2").launch.nnodes == 2);
  CHECK(nodes("2", "2").status.ok());
  CHECK_FALSE(nodes("2", "2").launch.elastic());
  CHECK(nodes("1", "3").launch.nodes_min == 1);
  CHECK(nodes("1", "3").launch.node_count() == 3);
  CHECK(contains(nodes("3", "2").status.message(), "3 is more than 2"));
  CHECK(read({{"PET_NNODES", "1:4"}}).launch.nodes_min == 1);
  CHECK(contains(read({{"MIN_NNODES", "2"}, {"MAX_NNODES", "4"}, {"NNODES", "5"}}).status.message(),
                 "NNODES=5 and MIN_NNODES and MAX_NNODES (2 to 4) disagree"));
  CHECK(contains(read({{"PET_NNODES", "1:x"}}).status.message(), "'x' is no whole number"));
  CHECK(contains(read({{"MIN_NNODES", "2"}}).status.message(), "says nothing without MAX_NNODES"));
  CHECK(contains(read({{"MIN_NNODES", "2"}, {"MAX_NNODES", "2"}, {"NNODES", "3"}}).status.message(),
                 "disagree"));
}

TEST_CASE("with RDZV_ID nodes are numbered in the order in which they come") {
  const auto same_on_all = read(
      {{"NNODES", "2"}, {"RDZV_ID", "job"}, {"MASTER_ADDR", "10.0.0.2"}, {"MASTER_PORT", "6379"}});
  CHECK(same_on_all.status.ok());
  CHECK(same_on_all.launch.numbered_on_arrival());
  for (const char* alone : {"MASTER_ADDR", "MASTER_PORT"}) {
    CHECK(contains(read({{"NNODES", "2"}, {"RDZV_ID", "job"}, {alone, "2"}}).status.message(),
                   "RDZV_ID=job: 2 nodes meet at MASTER_ADDR and MASTER_PORT; set both"));
  }
  const auto by_hand = read({{"NNODES", "2"}, {"RDZV_ID", "job"}, {"NODE_RANK", "0"}});
  CHECK(by_hand.status.ok());
  CHECK_FALSE(by_hand.launch.numbered_on_arrival());
  CHECK_FALSE(read({{"RDZV_ID", "job"}}).launch.numbered_on_arrival());
}

TEST_CASE("the world size and where it came from") {
  TrainConfig config;
  LaunchEnvironment launch;
  CHECK(resolve_world_size(config, launch, 0).value == 1);
  CHECK(resolve_world_size(config, launch, 3).value == 3);
  launch.nnodes = 2;
  CHECK(resolve_world_size(config, launch, 0).value == 2);
  CHECK(resolve_world_size(config, launch, 4).value == 8);
  launch.nproc_per_node = 3;
  CHECK(resolve_world_size(config, launch, 4).value == 6);
  CHECK(resolve_world_size(config, launch, 4).from == "NNODES × NPROC_PER_NODE");
  config.launch.ray_num_workers = 5;
  CHECK(resolve_world_size(config, launch, 4).from == "ray_num_workers");
  config.troupe.workers = 7;
  CHECK(resolve_world_size(config, launch, 4).value == 7);
  CHECK(resolve_world_size(config, launch, 4).from == "troupe.workers");
}

TEST_CASE("threads, address") {
  TrainConfig config;
  LaunchEnvironment launch;
  CHECK(resolve_threads_per_worker(config, 8, 3) == 2);
  CHECK(resolve_threads_per_worker(config, 2, 4) == 1);
  launch.address = "a:1";
  CHECK(resolve_address(config, launch) == "a:1");
  config.troupe.address = "b:2";
  CHECK(resolve_address(config, launch) == "b:2");
}

}  // namespace
}  // namespace troupe::train

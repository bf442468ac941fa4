#include "train/config/launch.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

Result<LaunchEnvironment> read(std::map<std::string, std::string, std::less<>> values) {
  return read_launch_environment(MapEnvironment(std::move(values)));
}

TEST_CASE("the launch environment is read") {
  const auto launch = read({{"USE_RAY", "1"},
                            {"NNODES", "2"},
                            {"NODE_RANK", "1"},
                            {"NPROC_PER_NODE", "4"},
                            {"MASTER_ADDR", "192.168.0.1"},
                            {"MASTER_PORT", "29500"},
                            {"MAX_RESTARTS", "0"},
                            {"TROUPE_ADDRESS", ""},
                            {"OPTIM_TORCH", "0"}});
  REQUIRE(launch.ok());
  CHECK(launch->use_ray);
  CHECK_FALSE(launch->force_torchrun);
  CHECK(launch->node_count() == 2);
  CHECK(launch->node_rank == 1);
  CHECK(launch->master_port == 29500);
  CHECK(launch->max_restarts == 0);
  CHECK_FALSE(launch->address);
  CHECK_FALSE(launch->optim_torch);
  CHECK(read({})->node_count() == 1);
}

TEST_CASE("bad values name their variable") {
  const auto message = [](const char* name, const char* value) {
    const auto launch = read({{name, value}});
    REQUIRE_FALSE(launch.ok());
    return launch.status().message();
  };
  CHECK(message("NNODES", "two") == "environment NNODES: 'two' is no whole number");
  CHECK(message("NNODES", "0") == "environment NNODES: 0 is not between 1 and 65536");
  CHECK(message("MASTER_PORT", "70000").find("MASTER_PORT") != std::string::npos);
  CHECK(message("NODE_RANK", "1").find("not below NNODES") != std::string::npos);
  CHECK(message("MAX_RESTARTS", "-1").find("MAX_RESTARTS") != std::string::npos);
  CHECK(message("USE_MCA", "1").find("Megatron core is another runtime") != std::string::npos);
  CHECK(read({{"MIN_NNODES", "3"}, {"MAX_NNODES", "2"}}).status().message().find("MIN_NNODES") !=
        std::string::npos);
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

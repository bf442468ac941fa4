#include "train/trainer/trainer_options.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

const NodeId kFirstNode{1, 2};
const NodeId kSecondNode{3, 4};

TEST_CASE("a trainer asks for the resources of its rank, a spare for none") {
  const RunSpec spec{.run = "r",
                     .world_size = 2,
                     .cpus_per_trainer = 3,
                     .gpus_per_trainer = 1,
                     .log_dir = "/logs",
                     .memory_per_trainer = 100,
                     .resources_per_trainer = {{"fast", 1}},
                     .bundles = {4, 5}};
  const auto trainer = trainer_options(spec, 1, {});
  CHECK(trainer.name == "r/trainer-1");
  CHECK(trainer.num_cpus == 3);
  CHECK(trainer.num_gpus == 1);
  CHECK(trainer.memory_bytes == 100);
  CHECK(trainer.resources.contains("fast"));
  CHECK(trainer.bundle_index == 5);
  CHECK(trainer.rank == 1);
  CHECK(trainer.log_path == "/logs/rank-1.log");
  CHECK(trainer_setup(spec, 1).rank == 1);

  const auto spare = trainer_options(spec, 3, SparePlace{kFirstNode, 0, "GPU-7"});
  CHECK(spare.name == "r/trainer-3");
  CHECK(spare.num_cpus == 0);
  CHECK(spare.num_gpus == 0);
  CHECK(spare.memory_bytes == 0);
  CHECK(spare.resources.empty());
  CHECK(spare.rank == -1);
  CHECK(spare.node_affinity == kFirstNode);
  CHECK(spare.environment.at(kVisibleGpus) == "GPU-7");
  CHECK(spare.log_path == "/logs/spare-1.log");
  CHECK(trainer_setup(spec, 3).rank == -1);
  CHECK(trainer_setup(spec, 3).trainer == 3);
}

TEST_CASE("with several machines trainers and spares ask for the machine's label, not for a node") {
  const RunSpec spec{.run = "r", .world_size = 3, .machines = 2};
  for (const auto& [trainer, machine] : {std::pair(0, "0"), {1, "0"}, {2, "1"}})
    CHECK(trainer_options(spec, trainer, {}).label_selector.at(kNodeRankLabel) == machine);
  const auto places =
      spare_places(spec, {{kFirstNode, 0, ""}, {kFirstNode, 1, ""}, {kSecondNode, 2, ""}});
  REQUIRE(places.size() == 2);
  const auto spare = trainer_options(spec, 3, places[1]);
  CHECK(spare.label_selector.at(kNodeRankLabel) == "1");
  CHECK_FALSE(spare.node_affinity);
}

TEST_CASE("spares have a place on each node, on GPUs beside each GPU") {
  const RunSpec spec{.world_size = 3};
  CHECK(spare_places(spec, {{kFirstNode, 0, ""}, {kFirstNode, 1, ""}, {kSecondNode, 2, ""}}) ==
        std::vector<SparePlace>{{kFirstNode, 0, ""}, {kSecondNode, 0, ""}});
  CHECK(spare_places(spec, {{kFirstNode, 0, "x"}, {kFirstNode, 1, "y"}, {kSecondNode, 2, "x"}}) ==
        std::vector<SparePlace>{{kFirstNode, 0, "x"}, {kFirstNode, 0, "y"}, {kSecondNode, 0, "x"}});
}

}  // namespace
}  // namespace troupe::train

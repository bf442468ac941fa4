#include "train/trainer/run_plan.h"

#include <doctest/doctest.h>

#include "tests/train/trainer/small_model.h"

namespace troupe::train {
namespace {

LoadedConfig loaded_config() {
  LoadedConfig loaded;
  loaded.config.training.per_device_train_batch_size = 4;
  loaded.config.training.gradient_accumulation_steps = 3;
  loaded.config.troupe.threads_per_worker = 2;
  loaded.config.sharding.strategy = "zero3";
  loaded.world_size.value = 4;
  return loaded;
}

RunBundle bundle_of(const std::vector<std::int64_t>& lengths) {
  RunBundle bundle;
  bundle.dataset = TokenDataset(TokenDataset::Kind::kSupervised, 0);
  for (const std::int64_t length : lengths) {
    const std::vector<TokenId> ids(static_cast<std::size_t>(length), 1);
    bundle.dataset.append(ids, std::vector<std::int32_t>(ids.size(), 1));
  }
  return bundle;
}

TEST_CASE("a plan takes its sizes from the configuration and the data") {
  const LoadedConfig loaded = loaded_config();
  const RunBundle bundle = bundle_of({10, 30, 17});
  const PlanFacts facts = facts_of(bundle, loaded, 1, 16);
  // Supervised rows are padded to a multiple of eight.
  CHECK(facts.length_max == 32);
  CHECK(facts.world_size == 4);
  CHECK(facts.ranks_on_machine() == 4);
  CHECK(facts.threads == 2);
  // Ids, labels, and where each of three samples ends.
  CHECK(facts.dataset_bytes == 57 * 8 + 3 * 8);
  const PlanRequest request = plan_request(loaded.config, small_model(), facts).value();
  CHECK(request.strategy == Strategy::kZero3);
  CHECK(request.mesh == Mesh{.dp_shard = 4});
  CHECK(request.activations.rows_max == 4);
  CHECK(request.activations.length_max == 32);
  CHECK(request.ragged);
  CHECK(request.activations.recompute == Recompute::kLayers);
  CHECK(request.reduction.micro_batches == 3);
  CHECK(request.ranks_on_node == 4);
  CHECK_FALSE(request.evaluation);
  CHECK(request.save_buffer_bytes > 0);
  CHECK_FALSE(request.mesh_given);
  // The final model is written in any case.
  LoadedConfig unsaved = loaded;
  unsaved.config.training.save_strategy = IntervalStrategy::kNo;
  CHECK(plan_request(unsaved.config, small_model(), facts).value().save_buffer_bytes ==
        request.save_buffer_bytes);
}

TEST_CASE("what a world that may change does not support is refused by name") {
  LoadedConfig loaded = loaded_config();
  loaded.launch.nodes_min = 1;
  loaded.launch.nnodes = 4;
  REQUIRE(check_world(loaded).ok());
  const auto refused = [&](const std::string& what, bool on_gpus = false) {
    const Status status = check_world(loaded, on_gpus);
    CHECK(status.code() == Code::kUnsupported);
    CHECK_MESSAGE(status.message().find(what) != std::string::npos, status.to_string());
  };
  refused("where trainers are on GPUs", true);
  SUBCASE("spares") {
    loaded.config.troupe.spares = 1;
    refused("troupe.spares is 1");
  }
  SUBCASE("a number of trainers") {
    loaded.launch.nnodes = 3;
    loaded.world_size.from = "troupe.workers";
    refused("4 trainers (troupe.workers) are not the same number on each of 3 machines");
  }
  SUBCASE("a mesh") {
    loaded.config.sharding.strategy = "hsdp";
    loaded.config.sharding.mesh_replicate = 2;
    loaded.config.sharding.mesh_shard = 2;
    refused("with 1 machines: ");
  }
  SUBCASE("states without copies") {
    loaded.config.troupe.replicas = "0";
    refused("troupe.replicas=0");
    loaded.config.sharding.strategy = "ddp";
    CHECK(check_world(loaded).ok());
  }
}

TEST_CASE("machines share the ranks, evaluation has rows of its own") {
  LoadedConfig loaded = loaded_config();
  loaded.launch.nnodes = 2;
  loaded.config.evaluation.val_size = 0.1;
  loaded.config.evaluation.per_device_eval_batch_size = 16;
  loaded.config.model.compute = Precision::kBfloat16;
  RunBundle bundle = bundle_of({10, 10});
  bundle.eval = bundle_of(std::vector<std::int64_t>(12, 30)).dataset;
  const PlanFacts facts = facts_of(bundle, loaded, loaded.launch.node_count(), 16);
  CHECK(facts.ranks_on_machine() == 2);
  const PlanRequest request = plan_request(loaded.config, small_model(), facts).value();
  CHECK_FALSE(request.ragged);
  CHECK(request.ranks_on_node == 2);
  // Training's own rows stay what they are; no batch has more rows than there are.
  CHECK(request.activations.rows_max == 4);
  CHECK(request.activations.length_max == 16);
  REQUIRE(request.evaluation);
  CHECK(request.evaluation->rows_max == 12);
  CHECK(request.evaluation->length_max == 32);
  CHECK_FALSE(request.evaluation->training);
  CHECK(request.compute.compute == DType::kBF16);
  CHECK(request.compute.state == DType::kF32);
  // Twice as many trainers on as many machines.
  const PlanRequest doubled =
      plan_request(loaded.config, small_model(), facts, Strategy::kHybridShard, 8).value();
  CHECK(doubled.mesh == Mesh{.dp_replicate = 2, .dp_shard = 4});
  CHECK(doubled.ranks_on_node == 4);
}

TEST_CASE("copies of one machine's states are refused before anything is started") {
  LoadedConfig loaded = loaded_config();
  loaded.config.troupe.replicas = "1";
  const Status refused = check_world(loaded);
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK(refused.message() == "troupe.replicas=1: all ranks are on one machine; use auto or 0");
  loaded.launch.nnodes = 2;
  CHECK(check_world(loaded).ok());
  // Where the trainers go is the cluster's to decide.
  loaded.launch = {};
  loaded.config.troupe.address = "head:6379";
  CHECK(check_world(loaded).ok());
}

TEST_CASE("a mesh that does not fit the world is refused") {
  LoadedConfig loaded = loaded_config();
  loaded.config.sharding.strategy = "hsdp";
  loaded.config.sharding.mesh_replicate = 3;
  loaded.config.sharding.mesh_shard = 2;
  const PlanFacts facts = facts_of(bundle_of({10}), loaded, loaded.launch.node_count(), 16);
  CHECK(plan_request(loaded.config, small_model(), facts).status().code() ==
        Code::kInvalidArgument);
  loaded.config.sharding.mesh_replicate = 2;
  CHECK(plan_request(loaded.config, small_model(), facts).value().mesh_given);
}

TEST_CASE("a run is checked against the memory of each machine") {
  const LoadedConfig loaded = loaded_config();
  RunBundle bundle = bundle_of({10});
  bundle.model = small_model();
  bundle.config.troupe.replicas = "0";
  const PlanFacts facts = facts_of(bundle, loaded, 2, 16);
  TrainConfig alone = loaded.config;
  alone.troupe.replicas = "0";
  const auto needed = node_bytes(plan_request(alone, bundle.model, facts).value());
  const auto check = [&](std::int64_t machines, std::int64_t bytes) {
    return check_run_fits(bundle, loaded, machines, 16,
                          {.available_bytes = bytes, .total_bytes = bytes});
  };
  CHECK(check(2, needed).ok());
  CHECK(check(2, needed - 1).status().code() == Code::kOutOfMemory);
  // The same trainers on one machine need more of it.
  CHECK(check(1, needed).status().code() == Code::kOutOfMemory);
}

TEST_CASE("copies of other machines' states are planned, and given up where there is no room") {
  LoadedConfig loaded = loaded_config();
  loaded.config.sharding.strategy = "zero3";
  RunBundle bundle = bundle_of({10});
  bundle.model = small_model();
  const auto request_on = [&](std::int64_t machines) {
    return plan_request(loaded.config, bundle.model, facts_of(bundle, loaded, machines, 16))
        .value();
  };
  const PlanRequest request = request_on(2);
  CHECK(keeps_copies(request));
  CHECK_FALSE(keeps_copies(request_on(1)));
  const MemoryPlan plan = plan_memory(request);
  // Parameters, two slots and gradients, and the log of the updates.
  CHECK(plan.kept > plan.parameters + plan.optimizer + plan.gradients);
  CHECK(plan.kept < 2 * plan.state());
  CHECK(plan_traffic(request).copies > 0);
  const auto check = [&](std::int64_t bytes) {
    return check_run_fits(bundle, loaded, 2, 16, {.available_bytes = bytes, .total_bytes = bytes});
  };
  const std::int64_t needed = node_bytes(request);
  CHECK(check(needed).value().empty());
  CHECK(bundle.config.troupe.replicas == "auto");
  CHECK(check(needed - 1).value().find("troupe.replicas=auto") != std::string::npos);
  CHECK(bundle.config.troupe.replicas == "0");
  bundle.config.troupe.replicas = "1";
  const Status refused = check(needed - 1).status();
  CHECK(refused.code() == Code::kOutOfMemory);
  CHECK(refused.message().find("troupe.replicas=0") != std::string::npos);
}

TEST_CASE("a world that may change is refused where copies have no room, and not given up") {
  LoadedConfig loaded = loaded_config();
  loaded.launch.nodes_min = 2;
  loaded.launch.nnodes = 4;
  loaded.world_size.value = 2;  // of the fewest machines
  RunBundle bundle = bundle_of({10});
  bundle.model = small_model();
  const PlanRequest request =
      plan_request(loaded.config, bundle.model, facts_of(bundle, loaded, 2, 16)).value();
  CHECK(keeps_copies(request));
  CHECK(plan_memory(request).former > 0);
  const auto check = [&](std::int64_t bytes) {
    return check_run_fits(bundle, loaded, 2, 16, {.available_bytes = bytes, .total_bytes = bytes});
  };
  CHECK(check(node_bytes(request)).value().empty());
  const Status refused = check(node_bytes(request) - 1).status();
  CHECK(refused.code() == Code::kOutOfMemory);
  CHECK(refused.message().find("troupe.replicas=0") == std::string::npos);
  CHECK(bundle.config.troupe.replicas == "auto");
}

}  // namespace
}  // namespace troupe::train

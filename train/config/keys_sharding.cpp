// Our keys of sharding, precision and checkpoints.
#include "train/config/key_builder.h"
#include "train/config/mesh.h"

namespace troupe::train {
namespace {

void add_strategy_keys(KeyTable& t) {
  t.choice("troupe.strategy", "ddp",
           "ddp|zero1|zero2|zero3|fsdp|shard_grad_op|hsdp|hsdp_zero2|no_shard|zero0|full_shard|"
           "hybrid_shard|hybrid_shard_zero2")
      .implemented(
          "what is sharded over the trainers",
          [](TrainConfig& config, const json::Value& value) -> Status {
            config.sharding.strategy = canonical_strategy(TROUPE_TRY(read_text(value)));
            return {};
          },
          [](const TrainConfig& config) { return to_value(config.sharding.strategy); });
  t.choice("troupe.offload", "none", "none|optimizer|parameters")
      .implemented(
          "what lies in the host's memory where GPUs compute: the optimizer's state, which the "
          "host "
          "updates "
          "then, or that and sharded parameters; the same bits",
          TROUPE_FIELD(sharding.offload));
  t.optional("troupe.mesh", ValueType::kAny)
      .implemented(
          "REPLICATE,SHARD: groups of SHARD trainers that shard, REPLICATE copies of them",
          [](TrainConfig& config, const json::Value& value) -> Status {
            const auto mesh = TROUPE_TRY(read_mesh(value));
            config.sharding.mesh_replicate = mesh.replicate;
            config.sharding.mesh_shard = mesh.shard;
            return {};
          },
          [](const TrainConfig& config) -> json::Value {
            const auto& sharding = config.sharding;
            if (sharding.mesh_shard == 0) return nullptr;
            return json::Array{sharding.mesh_replicate, sharding.mesh_shard};
          });
  for (const auto* axis : {"tensor", "context", "pipeline"}) {
    t.integer(fmt::format("troupe.{}_parallel", axis), 1)
        .refused(fmt::format("trainers of one {}-parallel group", axis),
                 fmt::format("{} parallelism comes later", axis), "use 1 and more trainers")
        .at_least(1);
  }
}

void add_limit_keys(KeyTable& t) {
  const auto gathers = [](const TrainConfig& config) {
    const auto& strategy = config.sharding.strategy;
    return strategy != "ddp" && strategy != "zero1" && strategy != "zero2";
  };
  const char* gathered_only = "every trainer has whole parameters: troupe.strategy shards none";
  t.integer("troupe.max_live_parameters", 1'000'000'000)
      .implemented("gathered parameters at a time, in elements",
                   TROUPE_FIELD(sharding.max_live_parameters))
      .at_least(0)
      .only_where(gathers, gathered_only);
  t.integer("troupe.max_reuse_distance", 0)
      .implemented("a unit used again within so many elements stays gathered",
                   TROUPE_FIELD(sharding.max_reuse_distance))
      .at_least(0)
      .only_where(gathers, gathered_only);
  t.optional("troupe.prefetch_bucket_size", ValueType::kInteger)
      .implemented("elements gathered ahead (default: one unit)",
                   TROUPE_FIELD(sharding.prefetch_bucket_size))
      .at_least(0)
      .only_where(gathers, gathered_only);
  t.integer("troupe.param_persistence_threshold", 0)
      .implemented("units up to so many elements stay gathered",
                   TROUPE_FIELD(sharding.param_persistence_threshold))
      .at_least(0)
      .only_where(gathers, gathered_only);
}

}  // namespace

void add_sharding_keys(KeyTable& t) {
  add_strategy_keys(t);
  add_limit_keys(t);
  t.choice("troupe.deterministic", "strategy", "strategy|across_world_sizes|off")
      .implemented("what equal bits are promised across", TROUPE_FIELD(sharding.deterministic));
  t.optional_choice("troupe.activation_checkpointing", "none|full|selective")
      .implemented(
          "what a block keeps for its backward pass (default: full, none with "
          "disable_gradient_checkpointing); the same bits",
          TROUPE_FIELD(model.activation_checkpointing));
  t.choice("troupe.reduce_dtype", "float32", "float32|bfloat16|fp32|bf16")
      .implemented("what gradients travel in between trainers; sums are in fp32",
                   TROUPE_FIELD(model.reduce));
  t.choice("troupe.checkpoint_format", "hf", "hf|sharded")
      .implemented("hf: whole tensors for transformers; sharded: every trainer writes its shard",
                   TROUPE_FIELD(training.checkpoint_format));
}

}  // namespace troupe::train

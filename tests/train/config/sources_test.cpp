// Several sources that speak of one thing.

#include "train/config/sources.h"

#include "tests/train/config/load_helpers.h"
#include "train/config/explain.h"

namespace troupe::train {
namespace {

using namespace tests;

constexpr const char* kZero3 = R"(deepspeed:
  train_micro_batch_size_per_gpu: auto
  gradient_accumulation_steps: auto
  zero_optimization: {stage: 3, stage3_max_live_parameters: 1e6, stage3_param_persistence_threshold: auto}
)";

TEST_CASE("deepspeed gives the strategy and its limits") {
  const auto config = accepted(load_with(kZero3)).config;
  CHECK(config.sharding.strategy == "zero3");
  CHECK(config.sharding.max_live_parameters == 1'000'000);
  CHECK(config.sharding.max_reuse_distance == 1'000'000'000);
  CHECK(config.sharding.prefetch_bucket_size == 50'000'000);
  CHECK(config.sharding.param_persistence_threshold == 640);
  // What travels to the trainers is whole.
  const auto again = train_config_from_json(to_json(config));
  REQUIRE_MESSAGE(again.ok(), again.status().to_string());
  CHECK(again->sharding.strategy == "zero3");
  CHECK(again->sharding.max_live_parameters == 1'000'000);
  CHECK(again->sharding.prefetch_bucket_size == 50'000'000);
  CHECK(json::write(to_json(*again)) == json::write(to_json(config)));
  // Ours alone have ours.
  const auto ours = accepted(load_with("troupe: {strategy: zero3}")).config.sharding;
  CHECK(ours.max_reuse_distance == 0);
  CHECK_FALSE(ours.prefetch_bucket_size);
  CHECK(ours.param_persistence_threshold == 0);
}

TEST_CASE("two that agree are one") {
  CHECK(load_with(std::string(kZero3) + "troupe: {strategy: full_shard}").ok());
  CHECK(load_with(std::string(kZero3) + "fsdp: full_shard").ok());
  CHECK(load_with(std::string(kZero3), {}, {{"ACCELERATE_USE_FSDP", "true"}}).ok());
  CHECK(load_with(std::string(kZero3) + "troupe: {max_live_parameters: 1000000}").ok());
  CHECK(accepted(load_with(std::string(kZero3) + "troupe: {prefetch_bucket_size: 5}"))
            .config.sharding.prefetch_bucket_size == 5);
  CHECK(accepted(load_with("deepspeed: {train_micro_batch_size_per_gpu: auto, "
                           "gradient_accumulation_steps: auto, communication_data_type: bf16}"))
            .config.model.reduce == Precision::kBfloat16);
}

TEST_CASE("two that disagree are both named, with their values") {
  const auto refused = [](std::string_view lines, Variables variables = {}) {
    return refusal(load_with(lines, {}, std::move(variables)));
  };
  const std::string zero3 = kZero3;
  CHECK(contains(refused(zero3 + "troupe: {strategy: ddp}"),
                 "troupe.strategy=ddp and deepspeed.zero_optimization.stage=3 (zero3) disagree "
                 "about the strategy"));
  CHECK(contains(refused(zero3 + "fsdp: shard_grad_op"),
                 "deepspeed.zero_optimization.stage=3 (zero3) and fsdp=shard_grad_op disagree"));
  CHECK(contains(refused("troupe: {strategy: zero1}\nfsdp: full_shard"),
                 "troupe.strategy=zero1 and fsdp=full_shard (zero3) disagree"));
  CHECK(contains(refused("troupe: {strategy: ddp}",
                         {{"ACCELERATE_USE_FSDP", "true"}, {"FSDP_SHARDING_STRATEGY", "2"}}),
                 "troupe.strategy=ddp and FSDP_SHARDING_STRATEGY=2 (shard_grad_op) disagree"));
  CHECK(contains(refused("fsdp: full_shard", {{"ACCELERATE_USE_DEEPSPEED", "true"}}),
                 "ACCELERATE_DEEPSPEED_ZERO_STAGE=2 (zero2) and fsdp=full_shard (zero3) disagree"));
  CHECK(contains(refused(zero3 + "troupe: {max_live_parameters: 5}"),
                 "deepspeed.zero_optimization.stage3_max_live_parameters=1000000 and "
                 "troupe.max_live_parameters=5 disagree about max_live_parameters"));
  CHECK(contains(refused("troupe: {reduce_dtype: fp32}\ndeepspeed: {train_batch_size: auto, "
                         "gradient_accumulation_steps: auto, communication_data_type: bf16}"),
                 "troupe.reduce_dtype=float32 and deepspeed.communication_data_type=bfloat16"));
  CHECK(contains(refused("full_determinism: true\ntroupe: {deterministic: off}"),
                 "full_determinism=true and troupe.deterministic=off disagree"));
}

TEST_CASE("LLaMA-Factory's words about ZeRO-3") {
  const auto refused = [](const std::string& lines) { return refusal(load_with(lines)); };
  CHECK(contains(refused(kZero3 + std::string("pure_bf16: true")),
                 "pure_bf16: `pure_bf16` is incompatible with DeepSpeed ZeRO-3."));
  CHECK(contains(refused(kZero3 + std::string("predict_with_generate: true")),
                 "`predict_with_generate` is incompatible with DeepSpeed ZeRO-3."));
  CHECK(contains(refused(kZero3 + std::string("use_unsloth: true")),
                 "Unsloth is incompatible with DeepSpeed ZeRO-3."));
  CHECK(load_with("pure_bf16: true\ntroupe: {strategy: zero3}").ok());
  CHECK(contains(refused("deepspeed: {train_batch_size: auto, gradient_accumulation_steps: auto, "
                         "bf16: {enabled: true}, fp16: {enabled: true}}"),
                 "bfloat16 and fp16 modes cannot be simultaneously enabled"));
}

TEST_CASE("meshes and strategies") {
  const auto sharding = [](std::vector<std::string> arguments) {
    const auto loaded = load_with("", std::move(arguments));
    if (!loaded.ok()) return loaded.status().message();
    const auto& s = loaded->config.sharding;
    return fmt::format("{} {}x{}", s.strategy, s.mesh_replicate, s.mesh_shard);
  };
  CHECK(sharding({"troupe.workers=8", "troupe.mesh=2,4"}) == "hsdp 2x4");
  CHECK(sharding({"troupe.workers=4", "troupe.mesh=1,4"}) == "zero3 1x4");
  CHECK(sharding({"troupe.workers=4", "troupe.mesh=4,1"}) == "ddp 4x1");
  CHECK(sharding({"troupe.workers=4", "troupe.mesh=1,4", "troupe.strategy=zero2"}) == "zero2 1x4");
  CHECK(sharding({"troupe.workers=8", "troupe.strategy=hsdp"}) == "hsdp 0x0");
  CHECK(sharding({"troupe.workers=4", "troupe.mesh=2,2", "fsdp=full_shard"}) == "hsdp 2x2");
  CHECK(sharding({"troupe.workers=4", "troupe.mesh=2,2", "fsdp=shard_grad_op"}) ==
        "hsdp_zero2 2x2");
  CHECK(sharding({"troupe.workers=4", "troupe.mesh=2,2", "fsdp=full_shard",
                  "troupe.strategy=hsdp"}) == "hsdp 2x2");
  CHECK(sharding({"troupe.workers=4",
                  "parallelism_config={dp_replicate_size: 2, dp_shard_size: 2}"}) == "hsdp 2x2");
  CHECK(contains(sharding({"parallelism_config={tp_size: 2}"}),
                 "parallelism_config: tp_size=2 is not supported"));
  CHECK(
      contains(sharding({"troupe.workers=4", "troupe.mesh=2,2", "troupe.strategy=zero3"}),
               "troupe.mesh=2,2 and troupe.strategy=zero3 disagree: the mesh of zero3 is 1,SHARD"));
  CHECK(contains(sharding({"troupe.workers=4", "troupe.mesh=1,4", "troupe.strategy=ddp"}),
                 "the mesh of ddp is REPLICATE,1"));
  CHECK(contains(sharding({"troupe.workers=6", "troupe.mesh=2,4"}),
                 "troupe.mesh=2,4 has 8 places, the run has 6 trainers (troupe.workers)"));
  CHECK(contains(
      sharding({"troupe.workers=4", "troupe.mesh=2,2", "parallelism_config={dp_shard_size: 4}"}),
      "troupe.mesh=2,2 and parallelism_config=1,4 disagree about the mesh"));
}

TEST_CASE("explain says what became of every key, and where values are from") {
  const auto loaded = load_with(kZero3, {"bf16=true", "troupe.workers=2"}, {{"FSDP_VERSION", "2"}});
  const auto rows = explain(accepted(loaded));
  const auto row = [&](std::string_view key) {
    for (const auto& candidate : rows) {
      if (candidate.key == key) return candidate;
    }
    FAIL("no row for ", key);
    return ExplainRow();
  };
  CHECK(row("troupe.strategy").value == "zero3");
  CHECK(row("troupe.strategy").origin == "deepspeed.zero_optimization.stage");
  CHECK(row("troupe.strategy").given);
  CHECK(row("troupe.max_reuse_distance").origin == "DeepSpeed's default");
  CHECK(row("deepspeed.zero_optimization.stage").value == "3");
  CHECK(row("deepspeed.zero_optimization.stage").treatment == Treatment::kImplemented);
  CHECK(row("deepspeed.zero_optimization.stage3_param_persistence_threshold").value == "640");
  CHECK(row("deepspeed.gradient_accumulation_steps").value == "4");
  CHECK(row("bf16").value == "true");
  CHECK(row("troupe.activation_checkpointing").value == "full");
  const auto file = explain(accepted(
      load_with("troupe: {accelerate_config: acc.yaml}", {}, {},
                {{"acc.yaml",
                  "distributed_type: FSDP\nmixed_precision: bf16\ndebug: true\nfsdp_config: "
                  "{fsdp_use_orig_params: true}"}})));
  bool debug = false;
  for (const auto& fact : file) {
    if (fact.key == "bf16") CHECK(fact.origin == "troupe.accelerate_config.mixed_precision");
    if (fact.key == "troupe.accelerate_config.debug") {
      debug = true;
      CHECK(fact.treatment == Treatment::kInert);
      CHECK(fact.origin == "acc.yaml");
      CHECK_FALSE(fact.note.empty());
    }
    if (fact.given) CHECK_MESSAGE(!fact.note.empty(), fact.key);
  }
  CHECK(debug);
  for (const auto& fact : explain(accepted(load_with(
           "troupe: {accelerate_config: acc.yaml}", {}, {},
           {{"acc.yaml", "distributed_type: MULTI_CPU\nnum_machines: 1\nnum_processes: 3"}})))) {
    if (fact.key == "NNODES") CHECK(fact.origin == "troupe.accelerate_config.num_machines");
    if (fact.key == "NPROC_PER_NODE") CHECK(fact.value == "3");
  }
}

TEST_CASE("spares and the time after which a trainer counts as hanging") {
  const auto plain = accepted(load_with(""));
  CHECK(plain.config.troupe.spares == 0);
  CHECK_FALSE(plain.config.troupe.hang_timeout_ms);
  const auto given = accepted(load_with("", {"troupe.spares=2", "troupe.hang_timeout_ms=0"}));
  CHECK(given.config.troupe.spares == 2);
  CHECK(given.config.troupe.hang_timeout_ms == 0);
  CHECK(contains(refusal(load_with("", {"troupe.spares=-1"})), "troupe.spares"));
  CHECK(contains(refusal(load_with("", {"troupe.hang_timeout_ms=soon"})), "hang_timeout_ms"));
}

}  // namespace
}  // namespace troupe::train

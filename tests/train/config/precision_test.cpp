// Precision, activation checkpointing and the other plain keys under troupe.

#include "tests/train/config/load_helpers.h"
#include "train/config/mesh.h"

namespace troupe::train {
namespace {

using namespace tests;

std::string refused_precision(std::string_view lines) { return refusal(load_with(lines)); }

TEST_CASE("precision") {
  const auto plain = accepted(load_with("")).config.model;
  CHECK(plain.compute == Precision::kFloat32);
  CHECK(plain.state == Precision::kFloat32);
  CHECK(plain.reduce == Precision::kFloat32);
  const auto bf16 = accepted(load_with("bf16: true\ntroupe: {reduce_dtype: bf16}")).config.model;
  CHECK(bf16.compute == Precision::kBfloat16);
  CHECK(bf16.state == Precision::kFloat32);
  CHECK(bf16.reduce == Precision::kBfloat16);
  const auto pure = accepted(load_with("pure_bf16: true")).config.model;
  CHECK(pure.compute == Precision::kBfloat16);
  CHECK(pure.state == Precision::kBfloat16);
  CHECK(pure.rounds_randomly());
  CHECK_FALSE(plain.rounds_randomly());
  CHECK_FALSE(accepted(load_with("pure_bf16: true\ntroupe: {stochastic_rounding: false}"))
                  .config.model.rounds_randomly());
  const auto idle = accepted(load_with("bf16: true\ntroupe: {stochastic_rounding: true}"));
  CHECK_FALSE(idle.config.model.rounds_randomly());
  REQUIRE(idle.warnings.size() == 1);
  CHECK(contains(idle.warnings[0], "troupe.stochastic_rounding=true has no effect"));
  CHECK(
      contains(refused_precision("pure_bf16: true\nbf16: false"), "pure_bf16=true and bf16=false"));
  const auto fp8 = accepted(load_with("fp8: true\nfp8_backend: torchao")).config.model;
  CHECK(fp8.fp8);
  CHECK(fp8.compute == Precision::kBfloat16);
  CHECK(fp8.state == Precision::kFloat32);
  CHECK_FALSE(plain.fp8);
  CHECK(contains(refused_precision("fp8: true\nbf16: false"), "fp8=true and bf16=false disagree"));
  CHECK(contains(refused_precision("fp8: true\nfp8_backend: te"), "use fp8_backend: torchao"));
  CHECK(contains(refused_precision("fp8: true\nfp8_enable_fsdp_float8_all_gather: true"),
                 "parameters are gathered in bf16"));
  CHECK(accepted(load_with("fp16: true")).config.model.compute == Precision::kFloat16);
  CHECK(accepted(load_with("fp16: true\nbf16: false\nfp16_full_eval: true")).config.model.compute ==
        Precision::kFloat16);
  CHECK(contains(refused_precision("fp16: true\npure_bf16: true"), "pure_bf16=true and fp16"));
  const auto again = train_config_from_json(to_json(accepted(load_with("fp16: true")).config));
  REQUIRE(again.ok());
  CHECK(again->model.compute == Precision::kFloat16);
  CHECK(contains(refused_precision("fp16: true\nbf16: true"), "bf16 and fp16 cannot both be true"));
}

TEST_CASE("activation checkpointing follows two keys that must agree") {
  const auto of = [](std::string_view lines) {
    return accepted(load_with(lines)).config.model.activation_checkpointing;
  };
  CHECK(of("") == ActivationCheckpointing::kFull);
  CHECK(of("disable_gradient_checkpointing: true") == ActivationCheckpointing::kNone);
  CHECK(of("troupe: {activation_checkpointing: selective}") == ActivationCheckpointing::kSelective);
  CHECK(of("troupe: {activation_checkpointing: none}") == ActivationCheckpointing::kNone);
  CHECK(of("troupe: {activation_checkpointing: none}\ndisable_gradient_checkpointing: true") ==
        ActivationCheckpointing::kNone);
  CHECK(of("troupe: {activation_checkpointing: full}\ndisable_gradient_checkpointing: false") ==
        ActivationCheckpointing::kFull);
  CHECK(contains(
      refused_precision(
          "troupe: {activation_checkpointing: full}\ndisable_gradient_checkpointing: true"),
      "troupe.activation_checkpointing=full and disable_gradient_checkpointing=true disagree"));
  CHECK(contains(
      refused_precision(
          "troupe: {activation_checkpointing: none}\ndisable_gradient_checkpointing: false"),
      "disagree"));
  CHECK(
      contains(refused_precision("troupe: {activation_checkpointing: some}"), "one of none, full"));
}

TEST_CASE("determinism, checkpoint format, limits") {
  const auto config = accepted(load_with(R"(full_determinism: true
troupe:
  deterministic: across_world_sizes
  checkpoint_format: sharded
  max_live_parameters: 1e6
  max_reuse_distance: 2e6
  prefetch_bucket_size: 0
  param_persistence_threshold: 1000)"))
                          .config;
  CHECK(config.sharding.deterministic == Deterministic::kAcrossWorldSizes);
  CHECK(config.training.checkpoint_format == CheckpointFormat::kSharded);
  CHECK(config.sharding.max_live_parameters == 1'000'000);
  CHECK(config.sharding.max_reuse_distance == 2'000'000);
  CHECK(config.sharding.prefetch_bucket_size == 0);
  CHECK(config.sharding.param_persistence_threshold == 1000);
  // YAML reads the bare word as false.
  CHECK(accepted(load_with("troupe: {deterministic: off}")).config.sharding.deterministic ==
        Deterministic::kOff);
  const auto plain = accepted(load_with("full_determinism: true")).config;
  CHECK(plain.sharding.deterministic == Deterministic::kStrategy);
  CHECK(plain.training.checkpoint_format == CheckpointFormat::kHf);
  CHECK_FALSE(plain.sharding.prefetch_bucket_size);
}

TEST_CASE("strategies under all their names") {
  const auto of = [](const std::string& name) {
    return accepted(load_with("troupe: {strategy: " + name + "}")).config.sharding.strategy;
  };
  for (const auto* name :
       {"ddp", "zero1", "zero2", "zero3", "shard_grad_op", "hsdp", "hsdp_zero2"}) {
    CHECK(of(name) == name);
  }
  CHECK(of("no_shard") == "ddp");
  CHECK(of("zero0") == "ddp");
  CHECK(of("fsdp") == "zero3");
  CHECK(of("full_shard") == "zero3");
  CHECK(of("hybrid_shard") == "hsdp");
  CHECK(of("hybrid_shard_zero2") == "hsdp_zero2");
}

TEST_CASE("meshes") {
  const auto mesh = [](const json::Value& value) {
    const auto read = read_mesh(value);
    return read.ok() ? fmt::format("{}x{}", read->replicate, read->shard) : read.status().message();
  };
  CHECK(mesh("2,4") == "2x4");
  CHECK(mesh(" 2, 4 ") == "2x4");
  CHECK(mesh(json::Array{2, 4}) == "2x4");
  CHECK(mesh("dp_replicate=2,dp_shard=4") == "2x4");
  CHECK(mesh("dp_shard:4, tp:1") == "1x4");
  CHECK(mesh(json::Object{{"dp_replicate_size", 2}, {"dp_shard_size", 4}}) == "2x4");
  CHECK(mesh(nullptr) == "0x0");
  CHECK(mesh("tp=2,dp_shard=4") ==
        "tp=2 is not supported: tensor parallelism comes later; use 1 and more trainers on "
        "dp_shard");
  CHECK(contains(mesh(json::Object{{"cp_size", 2}}), "context parallelism comes later"));
  CHECK(contains(mesh("pp=2"), "pipeline parallelism"));
  CHECK(contains(mesh("dp_shrad=2"), "did you mean 'dp_shard'?"));
  for (const json::Value& bad :
       {json::Value("2"), json::Value("2,4,1"), json::Value("2,x"), json::Value("0,4"),
        json::Value(""), json::Value(4), json::Value(true), json::Value("dp_shard=2,4")}) {
    CAPTURE(json::write(bad));
    CHECK_FALSE(read_mesh(bad).ok());
  }
  const auto loaded =
      accepted(load_with("", {"troupe.mesh=2,4", "troupe.strategy=hsdp", "troupe.workers=8"}));
  CHECK(loaded.config.sharding.mesh_replicate == 2);
  CHECK(loaded.config.sharding.mesh_shard == 4);
  CHECK(
      contains(refused_precision("troupe: {mesh: {tp: 2}}"), "troupe.mesh: tp=2 is not supported"));
  CHECK(contains(refused_precision("troupe: {tensor_parallel: 2}"),
                 "troupe.tensor_parallel=2 is not supported"));
}

}  // namespace
}  // namespace troupe::train

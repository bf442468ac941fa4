#include <doctest/doctest.h>

#include "tests/train/config/memory_files.h"
#include "train/config/load.h"

namespace troupe::train {
namespace {

TEST_CASE("a configuration travels as JSON and comes back byte for byte") {
  auto files = tests::good_files();
  const std::vector<std::string> arguments = {
      "troupe.workers=2",
      "troupe.chaos=kill@step=3,rank=1,phase=backward",
      "max_samples=10",
      "resume_from_checkpoint=tiny",
      "warmup_steps=0.25",
      "lr_scheduler_kwargs={num_cycles: 0.5}",
      "ddp_timeout=180000000",
      "preprocessing_num_workers=16",
      "default_system=Be brief.",
      "deepspeed={train_micro_batch_size_per_gpu: auto, gradient_accumulation_steps: auto}"};
  const auto loaded =
      load_train_config_text(tests::kGoodYaml, "x.yaml", arguments, MapEnvironment(), files);
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  const auto text = json::write(to_json(loaded->config));
  const auto parsed = json::parse(text, "text");
  REQUIRE(parsed.ok());
  const auto again = train_config_from_json(*parsed);
  REQUIRE_MESSAGE(again.ok(), again.status().to_string());
  CHECK(json::write(to_json(*again)) == text);
  CHECK(again->data.max_samples == 10);
  CHECK(again->data.default_system == "Be brief.");
  CHECK(again->troupe.chaos == loaded->config.troupe.chaos);
  CHECK(again->training.resume_from_checkpoint.path == "tiny");
  CHECK(again->training.learning_rate == 1e-4);
  CHECK(again->training.ddp_timeout_s == 180000000);
  CHECK(again->other.at("preprocessing_num_workers").as_int64() == 16);
}

TEST_CASE("precision, sharding and evaluation travel") {
  auto files = tests::good_files();
  const std::vector<std::string> arguments = {"pure_bf16=true",
                                              "troupe.stochastic_rounding=false",
                                              "fp8=true",
                                              "val_size=0.1",
                                              "eval_strategy=epoch",
                                              "save_strategy=best",
                                              "early_stopping_steps=2",
                                              "load_best_model_at_end=true",
                                              "troupe.workers=8",
                                              "troupe.strategy=hybrid_shard",
                                              "troupe.mesh=2,4",
                                              "troupe.deterministic=off",
                                              "troupe.activation_checkpointing=selective",
                                              "troupe.reduce_dtype=bf16",
                                              "troupe.checkpoint_format=sharded",
                                              "troupe.prefetch_bucket_size=5",
                                              "troupe.max_live_parameters=6"};
  const auto loaded =
      load_train_config_text(tests::kGoodYaml, "x.yaml", arguments, MapEnvironment(), files);
  REQUIRE_MESSAGE(loaded.ok(), loaded.status().to_string());
  const auto value = to_json(loaded->config);
  const auto again = train_config_from_json(value);
  REQUIRE_MESSAGE(again.ok(), again.status().to_string());
  CHECK(json::write(to_json(*again)) == json::write(value));
  CHECK(again->model.compute == Precision::kBfloat16);
  CHECK(again->model.state == Precision::kBfloat16);
  CHECK(again->model.reduce == Precision::kBfloat16);
  CHECK(again->model.activation_checkpointing == ActivationCheckpointing::kSelective);
  CHECK(again->sharding.strategy == "hsdp");
  CHECK(again->sharding.mesh_replicate == 2);
  CHECK(again->sharding.mesh_shard == 4);
  CHECK(again->sharding.deterministic == Deterministic::kOff);
  CHECK(again->sharding.prefetch_bucket_size == 5);
  CHECK(again->sharding.max_live_parameters == 6);
  CHECK(again->evaluation.strategy == IntervalStrategy::kEpoch);
  CHECK(again->evaluation.do_eval);
  CHECK(again->evaluation.early_stopping_steps == 2);
  CHECK(again->training.save_strategy == IntervalStrategy::kBest);
  CHECK(again->training.checkpoint_format == CheckpointFormat::kSharded);
}

TEST_CASE("a configuration of defaults travels too") {
  const TrainConfig config;
  const auto again = train_config_from_json(to_json(config));
  REQUIRE_MESSAGE(again.ok(), again.status().to_string());
  CHECK(json::write(to_json(*again)) == json::write(to_json(config)));
}

TEST_CASE("foreign JSON is refused") {
  CHECK_FALSE(train_config_from_json(json::Array()).ok());
  CHECK_FALSE(train_config_from_json(json::Object{{"nonsense", 1}}).ok());
  CHECK_FALSE(train_config_from_json(json::Object{{"seed", "x"}}).ok());
}

}  // namespace
}  // namespace troupe::train

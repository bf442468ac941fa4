#include "train/config/deepspeed.h"

#include <doctest/doctest.h>

#include "tests/train/config/memory_files.h"

namespace troupe::train {
namespace {

DeepSpeedContext context() {
  DeepSpeedContext out;
  out.training.per_device_train_batch_size = 2;
  out.training.gradient_accumulation_steps = 8;
  out.training.learning_rate = 1e-4;
  out.world_size = 4;
  out.hidden_size = 64;
  return out;
}

Result<ResolvedDeepSpeed> resolved(std::string_view text) {
  json::ParseOptions options;
  options.relaxed = true;
  const auto value = json::parse(text, "ds.json", options);
  REQUIRE_MESSAGE(value.ok(), value.status().to_string());
  return resolve_deepspeed(value->as_object(), context());
}

std::string refused(std::string_view text) {
  const auto result = resolved(text);
  REQUIRE_FALSE(result.ok());
  return result.status().message();
}

TEST_CASE("the three batch sizes complete each other") {
  auto batch = resolve_deepspeed_batch(64, 2, std::nullopt, 4);
  REQUIRE(batch.ok());
  CHECK(batch->accumulation_steps == 8);
  batch = resolve_deepspeed_batch(64, std::nullopt, 8, 4);
  CHECK(batch->micro_batch_size == 2);
  batch = resolve_deepspeed_batch(std::nullopt, 2, 8, 4);
  CHECK(batch->train_batch_size == 64);
  batch = resolve_deepspeed_batch(64, std::nullopt, std::nullopt, 4);
  CHECK(batch->micro_batch_size == 16);
  CHECK(batch->accumulation_steps == 1);
  batch = resolve_deepspeed_batch(std::nullopt, 2, std::nullopt, 4);
  CHECK(batch->train_batch_size == 8);

  CHECK(resolve_deepspeed_batch(std::nullopt, std::nullopt, 8, 4).status().message() ==
        "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided");
  CHECK(resolve_deepspeed_batch(63, 2, 8, 4).status().message() ==
        "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
        "gradient_acc_step * world_size 63 != 2 * 8 * 4");
}

TEST_CASE("auto takes the values of the training configuration") {
  const auto result = resolved(R"({
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", // a comment
    "fp16": {"enabled": "auto", "loss_scale": 0}, "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                              "weight_decay": "auto"}},
    "zero_optimization": {"stage": 0, "reduce_bucket_size": "auto",
      "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",},
    "_comment": "passed over"})");
  REQUIRE_MESSAGE(result.ok(), result.status().to_string());
  CHECK(result->batch.train_batch_size == 64);
  const json::Value values = result->values;
  CHECK(json::find_integer(values, "train_batch_size") == 64);
  CHECK(json::find_integer(values, "train_micro_batch_size_per_gpu") == 2);
  CHECK(json::find_integer(values, "gradient_accumulation_steps") == 8);
  CHECK(json::find_number(values, "gradient_clipping") == 1.0);
  CHECK(json::write(*json::find(values, "fp16")) == R"({"enabled":false,"loss_scale":0})");
  const auto& zero = *json::find(values, "zero_optimization");
  CHECK(json::find_integer(zero, "reduce_bucket_size") == 4096);
  CHECK(json::find_integer(zero, "stage3_prefetch_bucket_size") == 3686);
  CHECK(json::find_integer(zero, "stage3_param_persistence_threshold") == 640);
  const auto& params = *json::find(*json::find(values, "optimizer"), "params");
  CHECK(json::find_number(params, "lr") == 1e-4);
  CHECK(json::write(*json::find(params, "betas")) == "[9E-1,9.99E-1]");
}

TEST_CASE("disagreements are listed in transformers' words, numbers compared as numbers") {
  CHECK(resolved(R"({"train_micro_batch_size_per_gpu": "2", "gradient_accumulation_steps": 8.0})")
            .ok());
  CHECK(refused(R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": "8",
                    "gradient_clipping": 0.5, "optimizer": {"type": "Adam",
                    "params": {"lr": 3e-5}}})") ==
        "Please correct the following DeepSpeed config values that mismatch TrainingArguments "
        "values:\n"
        "- ds train_micro_batch_size_per_gpu=3 vs hf per_device_train_batch_size=2\n"
        "- ds gradient_clipping=0.5 vs hf max_grad_norm=1.0\n"
        "- ds optimizer.params.lr=3e-05 vs hf learning_rate=0.0001\n"
        "The easiest method is to set these DeepSpeed config values to 'auto'.");
  CHECK(refused("{}") ==
        "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided");
  // Only the total: DeepSpeed would run micro-batches of 16.
  CHECK(refused(R"({"train_batch_size": 64})").find("64 != 2 * 8 * 4") != std::string::npos);
}

TEST_CASE("what is not supported is refused by name") {
  const auto contains = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  };
  for (const int stage : {1, 2, 3}) {
    const auto text = refused(fmt::format(R"({{"zero_optimization": {{"stage": {}}}}})", stage));
    CHECK(text == fmt::format("zero_optimization.stage={} is not supported: sharding comes later; "
                              "use troupe.strategy=ddp (stage 0)",
                              stage));
  }
  CHECK(contains(refused(R"({"zero_optimization": {"stage": 4}})"), "4 is no stage"));
  CHECK(contains(refused(R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})"),
                 "offload comes later"));
  CHECK(contains(refused(R"({"bf16": {"enabled": true}})"),
                 "bf16.enabled=True vs hf bf16|bf16_full_eval=False"));
  CHECK(contains(refused(R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})"),
                 "bfloat16 and fp16 modes cannot be simultaneously enabled"));
  CHECK(contains(refused(R"({"scheduler": {"type": "WarmupLR"}})"), "lr_scheduler_type"));
  CHECK(contains(refused(R"({"optimizer": {"type": "Lion"}})"), "optimizer.type=Lion"));
  CHECK(contains(refused(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})"),
                 "adam_w_mode=false"));
  CHECK(contains(refused(R"({"train_batchsize": 8})"), "did you mean 'train_batch_size'?"));
  CHECK(contains(refused(R"({"zero_optimization": {"overlap_com": true}})"),
                 "unknown key 'zero_optimization.overlap_com'; did you mean 'overlap_comm'?"));
  CHECK(contains(refused(R"({"zero_optimization": 3})"), "expected a mapping"));
  CHECK(contains(refused(R"({"gradient_predivide_factor": 2})"), "gradient_predivide_factor"));
}

TEST_CASE("files: comments, duplicate keys, missing") {
  tests::MemoryFiles files({{"ds.json", "{ // c\n\"train_batch_size\": \"auto\",}"},
                            {"twice.json", "{\"a\": 1,\n\"a\": 2}"},
                            {"list.json", "[]"},
                            {"tiny/config.json", R"({"hidden_size": 64})"},
                            {"bad/config.json", R"({"hidden_size": -4})"}});
  CHECK(read_deepspeed("ds.json", files).ok());
  CHECK(read_deepspeed("twice.json", files).status().message().find("twice.json:2") == 0);
  CHECK_FALSE(read_deepspeed("list.json", files).ok());
  CHECK(read_deepspeed("none.json", files).status().code() == Code::kNotFound);
  CHECK_FALSE(read_deepspeed(3, files).ok());
  CHECK(read_deepspeed(json::Object(), files).ok());
  CHECK(read_hidden_size("tiny", files) == 64);
  CHECK_FALSE(read_hidden_size("bad", files));
  CHECK_FALSE(read_hidden_size("none", files));
}

}  // namespace
}  // namespace troupe::train

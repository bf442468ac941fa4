#include "train/config/keys.h"
#include "tests/support/text.h"

#include <doctest/doctest.h>

#include <set>

#include "runtime/base/suggest.h"

namespace troupe::train {
namespace {

using troupe::tests::contains;

TEST_CASE("every row of the table is complete and consistent") {
  std::set<std::string> names;
  const TrainConfig config;
  for (const auto& key : key_table()) {
    CAPTURE(key.name);
    CHECK(names.insert(key.name).second);
    CHECK_FALSE(key.meaning.empty());
    CHECK(find_key(key.name) == &key);
    CHECK((key.treatment == Treatment::kImplemented) == static_cast<bool>(key.store));
    if (key.treatment == Treatment::kInert) CHECK_FALSE(key.reason.empty());
    if (key.treatment == Treatment::kRefused || !key.refuses.empty()) {
      CHECK_FALSE(key.reason.empty());
      CHECK_FALSE(key.instead.empty());
    }
    for (const auto& value : key.refuses) {
      if (key.type == ValueType::kBool) continue;
      CHECK(std::find(key.allowed.begin(), key.allowed.end(), value) != key.allowed.end());
    }
    const auto value = canonical_value(key, key.default_value);
    if (!key.default_value.is_null()) {
      REQUIRE_MESSAGE(value.ok(), value.status().message());
      CHECK(*value == key.default_value);
    }
  }
  CHECK(names.size() > 300);
}

TEST_CASE("defaults of the fields are those of the table") {
  const TrainConfig config;
  // Resolved from other keys, or with a default that is refused.
  const std::set<std::string> exceptions = {"finetuning_type",
                                            "output_dir",
                                            "packing",
                                            "model_name_or_path",
                                            "deepspeed",
                                            "troupe.chaos",
                                            "metric_for_best_model",
                                            "troupe.activation_checkpointing",
                                            "fsdp_config"};
  for (const auto& key : key_table()) {
    if (!key.fetch || exceptions.contains(key.name)) continue;
    CAPTURE(key.name);
    const auto value = key.fetch(config);
    const bool equal = value.is_number() && key.default_value.is_number()
                           ? value.to_number<double>() == key.default_value.to_number<double>()
                           : value == key.default_value;
    CHECK_MESSAGE(equal, json::write(value), " against ", json::write(key.default_value));
  }
}

TEST_CASE("values are read in the type of the key") {
  const auto read = [](const char* key, const json::Value& value) {
    const auto result = canonical_value(*find_key(key), value);
    return result.ok() ? json::write(*result) : result.status().message();
  };
  CHECK(read("learning_rate", "1e-4") == "1E-4");
  CHECK(read("learning_rate", 1) == "1E0");
  CHECK(read("gradient_accumulation_steps", "8") == "8");
  CHECK(read("ddp_timeout", 1.8e8) == "180000000");
  CHECK(read("bf16", "True") == "true");
  CHECK(read("bf16", 1) == "true");
  CHECK(read("save_strategy", false) == "\"no\"");
  CHECK(read("report_to", "none") == R"(["none"])");
  CHECK(read("report_to", nullptr) == "[]");
  CHECK(read("dataset", "identity, alpaca_en_demo,") == R"(["identity","alpaca_en_demo"])");
  CHECK(read("lr_scheduler_kwargs", R"({"num_cycles": 2})") == R"({"num_cycles":2})");
  CHECK(read("run_name", 7) == "\"7\"");

  CHECK(read("gradient_accumulation_steps", 1.5) == "expected a whole number, found 1.5E0");
  CHECK(read("learning_rate", "fast") == "expected a number, found \"fast\"");
  CHECK(read("learning_rate", ".inf").find("finite") != std::string::npos);
  CHECK(read("learning_rate", nullptr).find("null is no value here") == 0);
  CHECK(read("bf16", "maybe") == "expected true or false, found \"maybe\"");
  CHECK(read("per_device_train_batch_size", 0) == "0 is too small: at least 1 is asked for");
  CHECK(read("warmup_ratio", 1.5) == "1.5 is too large: at most 1 is asked for");
  // A wait's deadline counts nanoseconds in 64 bits.
  CHECK(read("ddp_timeout", 1e9) == "1000000000");
  CHECK(read("ddp_timeout", 9.3e9) == "9300000000 is too large: at most 1000000000 is asked for");
  CHECK(read("ddp_timeout", 0) == "0 is too small: at least 1 is asked for");
  CHECK(read("save_steps", 0) == "0 is too small: more than 0 is asked for");
  CHECK(read("stage", "stf") ==
        "'stf' is no valid value; one of pt, sft, rm, dpo, kto; did you mean 'sft'?");
  CHECK(read("troupe.device", "gpu") ==
        "'gpu' is no valid value; one of auto, cpu, cuda; GPUs are 'cuda'");
  CHECK(read("dataset", json::Object()) == "expected a text, found {}");
}

TEST_CASE("verdicts depend on the value") {
  const auto verdict = [](const char* key, const json::Value& value) {
    return verdict_of(*find_key(key), value);
  };
  CHECK(verdict("finetuning_type", "full").treatment == Treatment::kImplemented);
  CHECK(verdict("finetuning_type", "oft").note ==
        "finetuning_type=oft is not supported: OFT is not supported; use finetuning_type: lora");
  CHECK(verdict("bf16", true).treatment == Treatment::kImplemented);
  CHECK(verdict("fp16", true).treatment == Treatment::kImplemented);
  CHECK(verdict("flash_attn", "sdpa").treatment == Treatment::kInert);
  CHECK(verdict("flash_attn", "fa2").treatment == Treatment::kInert);
  CHECK(verdict("report_to", json::Array({"tensorboard"})).treatment == Treatment::kImplemented);
  CHECK(verdict("fsdp", "full_shard auto_wrap").treatment == Treatment::kImplemented);
  CHECK(verdict("tp_size", 2).treatment == Treatment::kRefused);
  CHECK(verdict("tf32", true).treatment == Treatment::kImplemented);
  CHECK(verdict("optim", "adamw_torch_fused").treatment == Treatment::kImplemented);
  CHECK(verdict("use_muon", true).treatment == Treatment::kImplemented);
  CHECK(verdict("badam_mode", "ratio").treatment == Treatment::kRefused);
  CHECK(verdict("optim", "sgd").treatment == Treatment::kImplemented);
  CHECK(verdict("optim", "lomo").treatment == Treatment::kRefused);
  CHECK(verdict("lr_scheduler_type", "reduce_lr_on_plateau").treatment == Treatment::kImplemented);
}

TEST_CASE("the nearest word") {
  CHECK(nearest_word("learning_rat", key_names()) == "learning_rate");
  CHECK(nearest_word("Learning-Rate", key_names()) == "learning_rate");
  CHECK(nearest_word("troupe.worker", key_names()) == "troupe.workers");
  CHECK(nearest_word("gradient_acumulation_step", key_names()) == "gradient_accumulation_steps");
  CHECK_FALSE(nearest_word("xyzzyplugh", key_names()));
  CHECK_FALSE(nearest_word("", key_names()));
  CHECK_FALSE(nearest_word(std::string(100'000, 'a'), key_names()));
}

}  // namespace
}  // namespace troupe::train

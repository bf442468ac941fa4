#include "train/adapters/adapter_config.h"

#include <doctest/doctest.h>

#include "runtime/base/file_system.h"
#include "tests/support/test_data.h"
#include "tests/support/text.h"
#include "tests/train/adapters/adapter_models.h"

namespace troupe::train {
namespace {

using troupe::tests::contains;

Result<AdapterConfig> with(std::string_view member) {
  return AdapterConfig::parse(
      fmt::format(R"({{"peft_type": "LORA"{}{}}})", member.empty() ? "" : ", ", member),
      "adapter_config.json");
}

TEST_CASE("absent keys take PEFT's defaults") {
  const AdapterConfig config = with("").value();
  CHECK(config.rank == 8);
  CHECK(config.lora_alpha == 8);
  CHECK(config.lora_dropout == 0);
  CHECK_FALSE(config.use_dora);
  CHECK_FALSE(config.use_rslora);
  CHECK(config.target_modules.empty());
  CHECK(config.init_lora_weights == json::Value(true));
  CHECK(config.notes.empty());
}

TEST_CASE("what is written is read again") {
  AdapterConfig config;
  config.base_model_name_or_path = "base";
  config.rank = 3;
  config.lora_alpha = 4.5;
  config.lora_dropout = 0.1;
  config.target_modules.expression = ".*\\.q_proj";
  config.modules_to_save = {"lm_head"};
  config.rank_pattern = {{"layers.1.mlp.up_proj", 5}};
  config.use_dora = true;
  config.init_lora_weights = "pissa_niter_16";
  const std::string text = config.to_text();
  const AdapterConfig again = AdapterConfig::parse(text, "x").value();
  CHECK(again.to_text() == text);
  CHECK(again.lora_alpha == 4.5);
  CHECK(again.target_modules == config.target_modules);
  CHECK(again.is_pissa());
  CHECK(again.notes.empty());
}

TEST_CASE("an unknown key is a note; what would change the computation is refused by its key") {
  const AdapterConfig config = with(R"("of_tomorrow": 1)").value();
  REQUIRE(config.notes.size() == 1);
  CHECK(contains(config.notes[0], "of_tomorrow"));

  for (const char* member :
       {R"("bias": "all")", R"("alora_invocation_tokens": [1])",
        R"("trainable_token_indices": [3])", R"("layer_replication": [[0, 2]])",
        R"("megatron_config": {"a": 1})", R"("loftq_config": {"loftq_bits": 4})",
        R"("target_parameters": ["w"])", R"("lora_bias": true)", R"("use_qalora": true)",
        R"("layers_to_transform": 1)", R"("ensure_weight_tying": true)",
        R"("init_lora_weights": "olora")"}) {
    const Status refused = with(member).status();
    const std::string_view text = member;
    CHECK_MESSAGE(refused.code() == Code::kUnsupported, member);
    CHECK_MESSAGE(contains(refused.message(), std::string(text.substr(1, text.find('"', 1) - 1))),
                  refused.message());
  }
  // Values of the same keys that ask for nothing.
  CHECK(with(R"("bias": "none", "loftq_config": {}, "layer_replication": null, "lora_bias": false)")
            .ok());
  const Status other = AdapterConfig::parse(R"({"peft_type": "IA3"})", "x").status();
  CHECK(other.code() == Code::kUnsupported);
  CHECK(contains(other.message(), "peft_type=IA3"));
}

TEST_CASE("what adapters of equal tensors compute differently is named by its key") {
  AdapterConfig one;
  one.rank = 4;
  one.lora_dropout = 0.1;
  AdapterConfig other = one;
  other.lora_dropout = 0.0;  // of training alone
  CHECK_FALSE(first_difference(one, other));
  other.lora_alpha = 64;
  CHECK(first_difference(one, other).value_or("").find("lora_alpha was 8") == 0);
  other = one;
  other.use_rslora = true;
  CHECK(first_difference(one, other) == "use_rslora was false and is true");
  other = one;
  other.init_lora_weights = "pissa_niter_4";
  CHECK(first_difference(one, other).value_or("").find("pissa_init") == 0);
  one.init_lora_weights = "pissa";
  CHECK(first_difference(one, other));
  other = one;
  CHECK_FALSE(first_difference(one, other));
}

TEST_CASE("values of a wrong type name the key and what was found") {
  for (const auto& [member, expected] :
       {std::pair(R"("r": 0)", "r: expected a whole number of at least 1, found 0"),
        std::pair(R"("r": 1.5)", "r: expected a whole number"),
        std::pair(R"("lora_dropout": 1)", "lora_dropout: expected a probability"),
        std::pair(R"("target_modules": 3)", "target_modules: expected a list of names, found 3"),
        std::pair(R"("use_dora": "yes")", "use_dora: expected true or false"),
        std::pair(R"("rank_pattern": {"a": 0})", "rank_pattern: expected an object"),
        std::pair(R"("rank_pattern": {"a": 9223372036854775807})",
                  "rank_pattern: expected an object")}) {
    const Status status = with(member).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK_MESSAGE(contains(status.message(), expected), status.message());
  }
  CHECK(AdapterConfig::parse("{}", "x").status().code() == Code::kInvalidArgument);
  CHECK(AdapterConfig::parse("[]", "x").status().code() == Code::kInvalidArgument);
}

TEST_CASE("PEFT's own files are written again byte by byte") {
  const auto golden = troupe::tests::test_data("lf_golden");
  if (!golden) return;
  PosixFileSystem files;
  for (const char* name :
       {"inits/r4", "inits/r4_a5", "inits/r4_dora", "inits/r4_qk_seed77", "inits/r4_qv",
        "inits/r4_qv_save", "inits/r4_seed99", "inits/r8", "inits/r8_rslora", "lora_all/final",
        "lora_alpha/final", "lora_embed_head/final", "lora_fresh/final", "lora_norm/final",
        "lora_qv/final", "lora_two_adapters/final", "lora_create_new/final"}) {
    CAPTURE(name);
    const std::string path = *golden + "/" + name + "/adapter_config.json";
    const std::string text = tests::file_text(files, path);
    const auto config = AdapterConfig::parse(text, path);
    REQUIRE_MESSAGE(config.ok(), config.status().to_string());
    CHECK(config->to_text() == text);
  }
}

}  // namespace
}  // namespace troupe::train

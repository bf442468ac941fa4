#include "train/config/finetuning.h"

#include <doctest/doctest.h>

#include <set>

#include "tests/train/config/load_helpers.h"
#include "train/config/explain.h"
#include "train/config/keys.h"

namespace troupe::train {
namespace {

using namespace tests;

// A value of each key as its row stores it, as JSON.
struct KeyExample {
  const char* key;
  json::Value value;
};

const std::vector<KeyExample>& examples() {
  static const std::vector<KeyExample> list = {
      {"finetuning_type", "freeze"},
      {"lora_rank", 16},
      {"lora_alpha", 3},
      {"lora_dropout", 0.25},
      {"lora_target", json::Array{"q_proj", "v_proj"}},
      {"additional_target", json::Array{"embed_tokens", "lm_head"}},
      {"use_rslora", true},
      {"use_dora", true},
      {"loraplus_lr_ratio", 16.0},
      {"pissa_init", true},
      {"pissa_iter", -1},
      {"pissa_convert", true},
      {"create_new_adapter", true},
      {"adapter_name_or_path", json::Array{"a", "b"}},
      {"adapter_folder", "inner"},
      {"freeze_trainable_layers", -3},
      {"freeze_trainable_modules", json::Array{"mlp"}},
      {"freeze_extra_modules", json::Array{"norm"}},
      {"use_llama_pro", true},
      {"infer_dtype", "bfloat16"},
      {"export_dir", "merged"},
      {"export_size", 2},
      {"export_device", "auto"},
      {"export_quantization_bit", 4},
      {"export_quantization_dataset", "c4"},
      {"export_quantization_nsamples", 64},
      {"export_quantization_maxlen", 512},
      {"export_legacy_format", true},
      {"export_hub_model_id", "name/model"},
  };
  return list;
}

TEST_CASE("every key of the section is stored, travels as JSON and comes back") {
  for (const auto& [key, value] : examples()) {
    CAPTURE(key);
    const KeySpec* row = find_key(key);
    REQUIRE(row);
    const auto canonical = canonical_value(*row, value);
    REQUIRE_MESSAGE(canonical.ok(), canonical.status().message());
    TrainConfig config;
    CHECK_FALSE(row->fetch(config) == *canonical);
    REQUIRE(row->store(config, *canonical).ok());
    CHECK(row->fetch(config) == *canonical);
    const auto again = train_config_from_json(to_json(config));
    REQUIRE_MESSAGE(again.ok(), again.status().to_string());
    CHECK(row->fetch(*again) == *canonical);
  }
}

TEST_CASE("absent keys: LLaMA-Factory's defaults") {
  const FinetuningSection section;
  CHECK(section.lora_rank == 8);
  CHECK_FALSE(section.lora_alpha);
  CHECK(section.lora_target == std::vector<std::string>{"all"});
  CHECK(section.freeze_trainable_modules == std::vector<std::string>{"all"});
  CHECK(find_key("finetuning_type")->default_value == json::Value("lora"));
}

TEST_CASE("every setting that training does not do is refused by its key, with its place") {
  // Keys of which a value asks for something that is not there, and the type with which it does.
  for (const auto& [key, type, text] : {
           std::tuple("export_dir: merged", "full",
                      "export_dir=merged is not supported: this is a configuration of `export`"),
       }) {
    CAPTURE(key);
    const std::string type_override = std::string("finetuning_type=") + type;
    const std::string message = refusal(load_with(key, {type_override}));
    CHECK_MESSAGE(contains(message, std::string("x.yaml:14: ") + text), message);
    CHECK(contains(message, "; "));  // what to do instead
  }
  for (const char* type : {"lora", "freeze", "full"})
    CHECK(load_with("", {std::string("finetuning_type=") + type, "train_from_scratch=false"}).ok());
  CHECK(contains(refusal(load_with("", {"finetuning_type=oft"})), "OFT is not supported"));
}

TEST_CASE("exports: what is refused") {
  FinetuningSection section;
  CHECK(check_export_supported(section).empty());
  section.exported.export_quantization_bit = 4;
  section.exported.export_quantization_dataset = "c4";
  section.exported.export_legacy_format = true;
  section.exported.export_hub_model_id = "a/b";
  const auto refused = check_export_supported(section);
  REQUIRE(refused.size() == 4);
  CHECK(refused[0].text ==
        "export_quantization_bit=4 is not supported: quantised models are not exported (GPTQ); "
        "leave the key out");
  for (const auto& setting : refused) CHECK(setting.text.starts_with(setting.key + "="));
}

TEST_CASE("LLaMA-Factory's own errors, at the key's place") {
  for (const auto& [lines, text] : {
           std::pair("use_rslora: true",
                     "use_rslora: `use_rslora` is only valid for LoRA training."),
           std::pair("use_dora: true", "use_dora: `use_dora` is only valid for LoRA training."),
           std::pair("pissa_init: true",
                     "pissa_init: `pissa_init` is only valid for LoRA training."),
           std::pair("loraplus_lr_ratio: 4",
                     "loraplus_lr_ratio: `loraplus_lr_ratio` is only valid for LoRA training."),
           std::pair("use_llama_pro: true",
                     "use_llama_pro: `use_llama_pro` is only valid for Freeze or LoRA training."),
           std::pair("adapter_name_or_path: a",
                     "adapter_name_or_path: Adapter is only valid for the LoRA method."),
           std::pair("quantization_bit: 4",
                     "quantization_bit: Quantization is only compatible with the LoRA or OFT "
                     "method."),
       }) {
    const std::string message = refusal(load_with(lines));
    CHECK_MESSAGE(contains(message, std::string("x.yaml:14: ") + text), message);
  }
  const auto lora = [](std::string_view lines) {
    return refusal(
        load_with(lines, {"finetuning_type=lora"}, {}, {{"ds3.json", R"({"train_batch_size": "auto",
                                "train_micro_batch_size_per_gpu": "auto",
                                "zero_optimization": {"stage": 3}})"}}));
  };
  for (const char* key : {"use_galore", "use_apollo", "use_badam"})
    CHECK(contains(lora(std::string(key) + ": true"),
                   std::string(key) + ": Cannot use LoRA with GaLore, APOLLO or BAdam together."));
  CHECK(contains(lora("quantization_bit: 3"),
                 "Bitsandbytes only accepts 4-bit or 8-bit quantization."));
  CHECK(contains(lora("quantization_bit: 4\nquantization_method: hqq"),
                 "quantization_method=hqq is not supported"));
  CHECK(contains(lora("quantization_bit: 4\nquantization_type: int4"), "nf4, fp4"));
  CHECK(contains(lora("pissa_init: true\nquantization_bit: 4"),
                 "Please use scripts/pissa_init.py to initialize PiSSA for a quantized model."));
  CHECK(contains(lora("pissa_init: true\ndeepspeed: ds3.json"),
                 "Please use scripts/pissa_init.py to initialize PiSSA in DS ZeRO-3."));
  CHECK(contains(lora("adapter_name_or_path: a,b\ndeepspeed: ds3.json"),
                 "adapter_name_or_path: Cannot use multiple adapters in DeepSpeed ZeRO-3."));
  CHECK(contains(lora("adapter_name_or_path: a\ncreate_new_adapter: true\ndeepspeed: ds3.json"),
                 "create_new_adapter: adapters are not merged in DeepSpeed ZeRO-3"));
  CHECK(contains(lora("adapter_name_or_path: a,b\nquantization_bit: 4"),
                 "Quantized model only accepts a single adapter. Merge them first."));
  CHECK(contains(lora("adapter_name_or_path: a\ncreate_new_adapter: true\nquantization_bit: 4"),
                 "Cannot create new adapter upon a quantized model."));
  CHECK(contains(lora(""),  // which trains from scratch
                 "train_from_scratch: with finetuning_type: lora adapters would be trained over "
                 "random weights, which no file would hold"));
  CHECK(contains(lora("lora_dropout: 1"), "lora_dropout: dropping everything"));
  CHECK(contains(lora("lora_target: null"), "lora_target: names no module"));
  CHECK(contains(lora("lora_rank: 0"), "lora_rank: 0 is too small"));
  CHECK(contains(lora("pissa_iter: 0"), "pissa_iter: expected -1"));
  CHECK(contains(refusal(load_with("pissa_init: true", {"finetuning_type=lora", "stage=kto"})),
                 "Cannot use PiSSA for current training stage."));
  CHECK(contains(refusal(load_with("freeze_trainable_modules: null", {"finetuning_type=freeze"})),
                 "freeze_trainable_modules: names no module"));
}

TEST_CASE("with full training, keys of adapters have no effect, and --explain says so") {
  const auto loaded = accepted(
      load_with("lora_rank: 16\nlora_target: all\nlora_alpha: 32\nfreeze_trainable_layers: 3\n"
                "create_new_adapter: false\ninfer_dtype: float16\nexport_size: 2"));
  CHECK(loaded.config.finetuning.lora_rank == 16);
  std::set<std::string> seen;
  for (const auto& row : explain(loaded)) {
    if (row.key != "lora_rank" && row.key != "lora_target" && row.key != "lora_alpha" &&
        row.key != "freeze_trainable_layers" && row.key != "infer_dtype" &&
        row.key != "export_size")
      continue;
    seen.insert(row.key);
    CAPTURE(row.key);
    CHECK(row.treatment == Treatment::kInert);
  }
  CHECK(seen.size() == 6);
}

TEST_CASE("create_new_adapter without an adapter has no effect, and --explain says so") {
  for (const bool given : {false, true}) {
    const auto loaded = accepted(load_with(
        given ? "create_new_adapter: true\nadapter_name_or_path: a" : "create_new_adapter: true",
        {"finetuning_type=lora", "train_from_scratch=false"}));
    std::optional<Treatment> treatment;
    for (const auto& row : explain(loaded))
      if (row.key == "create_new_adapter") treatment = row.treatment;
    CHECK(treatment == (given ? Treatment::kImplemented : Treatment::kInert));
  }
}

TEST_CASE("every implemented key that counts only at times has a reason") {
  for (const auto& key : key_table())
    if (key.counts) {
      CAPTURE(key.name);
      CHECK(key.treatment == Treatment::kImplemented);
      CHECK_FALSE(key.idle_reason.empty());
    }
}

}  // namespace
}  // namespace troupe::train

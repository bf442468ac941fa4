#include <doctest/doctest.h>

#include "tests/train/config/load_helpers.h"
#include "train/config/load.h"

namespace troupe::train {
namespace {

using namespace tests;

// LLaMA-Factory's examples/merge_lora/qwen3_lora_sft.yaml, but for the folders.
constexpr const char* kMerge = R"(### model
model_name_or_path: tiny
adapter_name_or_path: saves/lora, saves/more
template: qwen3_nothink
trust_remote_code: true

### export
export_dir: saves/merged
export_size: 2
export_device: cpu  # choices: [cpu, auto]
export_legacy_format: false
)";

Result<LoadedConfig> load_export(std::string_view text, std::vector<std::string> arguments = {}) {
  auto files = good_files();
  return load_train_config_text(text, "x.yaml", arguments, MapEnvironment(Variables{}), files,
                                {.purpose = LoadPurpose::kExport, .check_contents = {}});
}

TEST_CASE("a configuration of an export needs a model and a folder alone") {
  const LoadedConfig loaded = accepted(load_export(kMerge, {"infer_dtype=bfloat16"}));
  const FinetuningSection& finetuning = loaded.config.finetuning;
  CHECK(loaded.config.model.model_name_or_path == "tiny");
  CHECK(finetuning.adapter_name_or_path == std::vector<std::string>{"saves/lora", "saves/more"});
  CHECK(finetuning.infer_dtype == "bfloat16");
  CHECK(finetuning.exported.export_dir == "saves/merged");
  CHECK(finetuning.exported.export_size_gb == 2);
  CHECK(loaded.config.data.template_name == "qwen3_nothink");
  // A training refuses it.
  auto files = good_files();
  CHECK(contains(
      refusal(load_train_config_text(kMerge, "x.yaml", {}, MapEnvironment(Variables{}), files)),
      "export_dir=saves/merged is not supported: this is a configuration of `export`"));
}

TEST_CASE("all problems of an export are told together") {
  CHECK(contains(refusal(load_export("model_name_or_path: tiny\n")),
                 "Please specify `export_dir` to save model."));
  CHECK(contains(
      refusal(load_export("model_name_or_path: tiny\nexport_dir: out\n", {"quantization_bit=4"})),
      "quantization_bit with export_dir: a model is exported in the type"));
  const std::string text = refusal(load_export(
      kMerge, {"export_legacy_format=true", "export_quantization_bit=4", "finetuning_type=full",
               "export_hub_model_id=a/b", "exprt_size=1", "model_name_or_path=nowhere"}));
  for (const char* what :
       {"export_legacy_format=true is not supported",
        "Please merge adapters before quantizing the model.",
        "Adapter is only valid for the LoRA method.", "export_hub_model_id=a/b is not supported",
        "exprt_size: unknown key", "'nowhere' is no folder on this machine"}) {
    CAPTURE(what);
    CHECK(contains(text, what));
  }
}

}  // namespace
}  // namespace troupe::train

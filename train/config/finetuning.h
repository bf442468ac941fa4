#pragma once
// What of a model is trained, and adapters: LLaMA-Factory's keys as typed fields.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::train {

enum class FinetuningType { kFull, kFreeze, kLora };  // "full", "freeze", "lora"

// Keys of `export`. Training reads none of them.
struct ExportSection {
  std::optional<std::string> export_dir;
  std::int64_t export_size_gb = 5;  // key `export_size`: 10⁹ bytes a file at most
  std::string export_device = "cpu";
  std::optional<std::int64_t> export_quantization_bit;
  std::optional<std::string> export_quantization_dataset;
  std::int64_t export_quantization_nsamples = 128;
  std::int64_t export_quantization_maxlen = 1024;
  bool export_legacy_format = false;
  std::optional<std::string> export_hub_model_id;
};

// The fields are named as their keys.
// Power iterations of PiSSA's randomised decomposition: after a few, nothing changes any more.
inline constexpr std::int64_t kPissaIterationsMax = 1000;

struct FinetuningSection {
  FinetuningType type = FinetuningType::kFull;  // key `finetuning_type`; its default is lora

  std::int64_t lora_rank = 8;
  std::optional<std::int64_t> lora_alpha;  // nothing and 0: 2 · lora_rank
  double lora_dropout = 0.0;
  std::vector<std::string> lora_target = {"all"};
  std::vector<std::string> additional_target;
  bool use_rslora = false;
  bool use_dora = false;
  bool pissa_init = false;
  std::int64_t pissa_iter = 16;  // −1: by the exact decomposition
  bool pissa_convert = false;
  std::optional<double> loraplus_lr_ratio;
  bool create_new_adapter = false;
  std::vector<std::string> adapter_name_or_path;
  std::optional<std::string> adapter_folder;

  std::int64_t freeze_trainable_layers = 2;
  std::vector<std::string> freeze_trainable_modules = {"all"};
  std::vector<std::string> freeze_extra_modules;
  bool use_llama_pro = false;  // with lora, too
  // Key `troupe.trained_parameters`: instead of the freeze_* keys.
  std::vector<std::string> trained_parameters;

  std::string infer_dtype = "auto";
  ExportSection exported;

  bool is_lora() const { return type == FinetuningType::kLora; }
};

// A setting that is understood and that training does not do.
struct UnsupportedSetting {
  std::string key;
  std::string text;  // begins with the key: "use_dora=true is not supported: …; …"
};

// The one place that says which of these settings training does not do yet. Settings that have no
// effect with this type are not listed.
std::vector<UnsupportedSetting> check_supported(const FinetuningSection& finetuning);
// The same of an export.
std::vector<UnsupportedSetting> check_export_supported(const FinetuningSection& finetuning);

}  // namespace troupe::train

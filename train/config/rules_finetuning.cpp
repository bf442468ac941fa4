// What the keys of LoRA and freeze must say together, and what of them training does not do.
#include "train/config/rules.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

const json::Value* value_of(const json::Object& values, std::string_view key) {
  const auto* value = values.if_contains(json_view(key));
  return value && !value->is_null() ? value : nullptr;
}

std::string_view word(const json::Object& values, std::string_view key,
                      std::string_view otherwise) {
  const auto* value = value_of(values, key);
  return value && value->is_string() ? std::string_view(value->get_string()) : otherwise;
}

}  // namespace

void check_finetuning(const TrainConfig& config, const json::Object& values, Problems& problems) {
  const FinetuningSection& finetuning = config.finetuning;
  const auto wrong = [&](std::string_view key, std::string_view message) {
    problems.add(Code::kInvalidArgument, key, message);
  };
  // Of a type that is refused or no type, nothing more is said.
  const std::string_view type = word(values, "finetuning_type", "lora");
  const bool lora = type == "lora";
  const auto lora_only = [&](std::string_view key, bool asked) {
    if (asked && !lora) wrong(key, fmt::format("`{}` is only valid for LoRA training.", key));
  };
  lora_only("loraplus_lr_ratio", finetuning.loraplus_lr_ratio.has_value());
  lora_only("use_rslora", finetuning.use_rslora);
  lora_only("use_dora", finetuning.use_dora);
  lora_only("pissa_init", finetuning.pissa_init);
  if (!finetuning.adapter_name_or_path.empty() && !lora)
    wrong("adapter_name_or_path", "Adapter is only valid for the LoRA method.");
  if (finetuning.use_llama_pro && type == "full")
    wrong("use_llama_pro", "`use_llama_pro` is only valid for Freeze or LoRA training.");
  const auto unsupported = [&](std::string_view key, std::string_view message) {
    problems.add(Code::kUnsupported, key, message);
  };
  if (const auto bits = config.model.quantization_bit) {
    const std::string_view method = word(values, "quantization_method", "bnb");
    if (method != "bnb" && method != "bitsandbytes")
      unsupported("quantization_method",
                  fmt::format("quantization_method={} is not supported: weights are kept in 4 or 8 "
                              "bits as bitsandbytes keeps them; use quantization_method: bnb",
                              method));
    else if (*bits != 4 && *bits != 8)
      wrong("quantization_bit", "Bitsandbytes only accepts 4-bit or 8-bit quantization.");
  }
  if (!lora && type != "oft" && value_of(values, "quantization_bit"))
    wrong("quantization_bit", "Quantization is only compatible with the LoRA or OFT method.");

  if (lora) {
    for (const char* key : {"use_galore", "use_apollo", "use_badam"})
      if (is_on(values, key)) wrong(key, "Cannot use LoRA with GaLore, APOLLO or BAdam together.");
    const std::string_view stage = word(values, "stage", "sft");
    const std::string_view loss = word(values, "pref_loss", "sigmoid");
    const bool with_reference = stage == "dpo" && loss != "orpo" && loss != "simpo";
    if (finetuning.pissa_init &&
        (stage == "ppo" || stage == "kto" || with_reference || config.method.use_asft_loss))
      wrong("pissa_init", "Cannot use PiSSA for current training stage.");
    if (value_of(values, "quantization_bit")) {
      if (finetuning.pissa_init)
        wrong("pissa_init",
              "Please use scripts/pissa_init.py to initialize PiSSA for a quantized model.");
      if (finetuning.create_new_adapter && !finetuning.adapter_name_or_path.empty())
        wrong("create_new_adapter", "Cannot create new adapter upon a quantized model.");
      if (finetuning.adapter_name_or_path.size() > 1)
        wrong("adapter_name_or_path",
              "Quantized model only accepts a single adapter. Merge them first.");
    }
    // An adapter is saved alone. LLaMA-Factory trains it here, and it fits no model that anybody
    // has.
    if (config.model.train_from_scratch)
      wrong("train_from_scratch",
            "with finetuning_type: lora adapters would be trained over random weights, which no "
            "file would hold: leave train_from_scratch out, or train the whole model "
            "(finetuning_type: full) and adapters of it in a second run");
    if (finetuning.pissa_convert && finetuning.use_dora)
      wrong(
          "pissa_convert",
          "an adapter with magnitudes (use_dora) is no difference of two plain ones, which is what "
          "a conversion writes: leave one of the two out");
    if (finetuning.lora_dropout >= 1)
      wrong("lora_dropout", "dropping everything trains nothing: expected a number below 1");
    if (finetuning.lora_target.empty())
      wrong("lora_target", "names no module; write all, or names of linear modules");
    if (finetuning.pissa_iter == 0)
      wrong("pissa_iter", "expected -1 (the exact decomposition) or a number of at least 1");
  }
  if (type == "freeze" && finetuning.freeze_trainable_modules.empty())
    wrong("freeze_trainable_modules", "names no module; write all, or names of a layer's modules");
  for (const UnsupportedSetting& setting : check_supported(finetuning))
    if (!problems.has(setting.key))
      problems.add_named(Code::kUnsupported, setting.key, setting.text);
}

void check_chat(const TrainConfig& config, const json::Object& values, Problems& problems) {
  if (config.model.model_name_or_path.empty()) {
    problems.add(Code::kInvalidArgument, "model_name_or_path",
                 "Please provide `model_name_or_path`.");
  }
  if (const auto backend = word(values, "infer_backend", "huggingface"); backend != "huggingface") {
    problems.add_named(Code::kUnsupported, "infer_backend",
                       fmt::format("infer_backend={} is not supported: the model runs in this "
                                   "process, on its processors; leave the key out",
                                   backend));
  }
}

void check_export(const TrainConfig& config, const json::Object& values, Problems& problems) {
  const FinetuningSection& finetuning = config.finetuning;
  const auto wrong = [&](std::string_view key, std::string_view message) {
    problems.add(Code::kInvalidArgument, key, message);
  };
  if (config.model.model_name_or_path.empty())
    wrong("model_name_or_path", "Please provide `model_name_or_path`.");
  if (!finetuning.exported.export_dir)
    wrong("export_dir", "Please specify `export_dir` to save model.");
  if (!finetuning.adapter_name_or_path.empty()) {
    if (word(values, "finetuning_type", "lora") != "lora")
      wrong("adapter_name_or_path", "Adapter is only valid for the LoRA method.");
    if (finetuning.exported.export_quantization_bit)
      wrong("export_quantization_bit", "Please merge adapters before quantizing the model.");
    if (value_of(values, "quantization_bit"))
      wrong("quantization_bit", "Cannot merge adapters to a quantized model.");
  } else if (value_of(values, "quantization_bit")) {
    problems.add_named(Code::kUnsupported, "quantization_bit",
                       "quantization_bit with export_dir: a model is exported in the type that its "
                       "weights have, it is quantised where it is loaded; leave the key out");
  }
  for (const UnsupportedSetting& setting : check_export_supported(finetuning))
    if (!problems.has(setting.key))
      problems.add_named(Code::kUnsupported, setting.key, setting.text);
}

}  // namespace troupe::train

// Keys of what is trained: LoRA, freeze, and exports of adapters.
#include "train/config/key_builder.h"

namespace troupe::train {
namespace {

bool trains_lora(const TrainConfig& config) { return config.finetuning.is_lora(); }
bool trains_freeze(const TrainConfig& config) {
  return config.finetuning.type == FinetuningType::kFreeze;
}
constexpr const char* kLoraOnly = "it belongs to finetuning_type: lora";
// The configuration of an adapter that is trained on is its own, as in LLaMA-Factory.
bool trains_new_adapter(const TrainConfig& config) {
  const FinetuningSection& f = config.finetuning;
  return f.is_lora() && (f.adapter_name_or_path.empty() || f.create_new_adapter);
}
constexpr const char* kNewAdapterOnly =
    "it belongs to a new adapter: finetuning_type: lora, and create_new_adapter: true where "
    "adapter_name_or_path is given";
constexpr const char* kFreezeOnly = "it belongs to finetuning_type: freeze";

void add_lora_keys(KeyTable& t) {
  t.integer("lora_rank", 8)
      .implemented("LoRA: rank", TROUPE_FIELD(finetuning.lora_rank))
      .at_least(1)
      .only_where(trains_new_adapter, kNewAdapterOnly);
  t.list("lora_target", "all")
      .implemented("LoRA: modules (all, names, or a regular expression)",
                   TROUPE_FIELD(finetuning.lora_target))
      .only_where(trains_new_adapter, kNewAdapterOnly);
  t.optional("lora_alpha", ValueType::kInteger)
      .implemented("LoRA: alpha; the scale is alpha / rank (default 2 · lora_rank)",
                   TROUPE_FIELD(finetuning.lora_alpha))
      .at_least(1)
      .only_where(trains_new_adapter, kNewAdapterOnly);
  t.number("lora_dropout", 0)
      .implemented("LoRA: dropout of the adapters' input", TROUPE_FIELD(finetuning.lora_dropout))
      .at_least(0)
      .at_most(1)
      .only_where(trains_new_adapter, kNewAdapterOnly);
  t.list("additional_target")
      .implemented("LoRA: modules that are trained and saved whole",
                   TROUPE_FIELD(finetuning.additional_target))
      .only_where(trains_new_adapter, kNewAdapterOnly);
  t.boolean("use_rslora", false)
      .implemented("LoRA: scale by the root of the rank", TROUPE_FIELD(finetuning.use_rslora))
      .only_where(trains_new_adapter, kNewAdapterOnly);
  t.boolean("use_dora", false)
      .implemented("LoRA: DoRA", TROUPE_FIELD(finetuning.use_dora))
      .only_where(trains_new_adapter, kNewAdapterOnly);
  t.optional("loraplus_lr_ratio", ValueType::kNumber)
      .implemented("LoRA+: learning rate of B by that of A",
                   TROUPE_FIELD(finetuning.loraplus_lr_ratio))
      .at_least(0)
      .only_where(trains_lora, kLoraOnly);
  t.number("loraplus_lr_embedding", 1e-6)
      .inert("LoRA+: learning rate of embeddings' B",
             "embeddings have no low-rank adapters here; additional_target trains them whole");
  t.boolean("pissa_init", false)
      .implemented("LoRA: PiSSA start", TROUPE_FIELD(finetuning.pissa_init))
      .only_where(trains_new_adapter, kNewAdapterOnly);
  const auto with_pissa = [](const TrainConfig& config) {
    return trains_lora(config) && config.finetuning.pissa_init;
  };
  t.integer("pissa_iter", 16)
      .implemented("LoRA: PiSSA iterations, -1: the exact decomposition",
                   TROUPE_FIELD(finetuning.pissa_iter))
      .at_least(-1)
      .at_most(kPissaIterationsMax)
      .only_where(with_pissa, "it belongs to pissa_init: true");
  t.boolean("pissa_convert", false)
      .implemented("LoRA: a PiSSA adapter as one of the original base",
                   TROUPE_FIELD(finetuning.pissa_convert))
      .only_where(trains_lora, kLoraOnly);
  t.boolean("create_new_adapter", false)
      .implemented("LoRA: merge the given adapters and train a new one",
                   TROUPE_FIELD(finetuning.create_new_adapter))
      .only_where(
          [](const TrainConfig& config) {
            return trains_lora(config) && !config.finetuning.adapter_name_or_path.empty();
          },
          "it belongs to finetuning_type: lora with adapter_name_or_path; without one, the adapter "
          "is new anyway");
}

void add_oft_keys(KeyTable& t) {
  const char* instead = "use finetuning_type: lora and leave the key out";
  t.number("module_dropout", 0).refused("OFT: dropout", "OFT is not supported", instead);
  t.integer("oft_rank", 0).refused("OFT: rank", "OFT is not supported", instead);
  t.integer("oft_block_size", 32).refused("OFT: block size", "OFT is not supported", instead);
  t.list("oft_target").refused("OFT: layers", "OFT is not supported", instead);
}

void add_freeze_keys(KeyTable& t) {
  t.integer("freeze_trainable_layers", 2)
      .implemented("freeze: how many last layers are trained; negative: first ones",
                   TROUPE_FIELD(finetuning.freeze_trainable_layers))
      .only_where(
          [](const TrainConfig& config) {
            return trains_freeze(config) ||
                   (trains_lora(config) && config.finetuning.use_llama_pro);
          },
          kFreezeOnly);
  t.list("freeze_trainable_modules", "all")
      .implemented("freeze: trained modules of a layer",
                   TROUPE_FIELD(finetuning.freeze_trainable_modules))
      .only_where(trains_freeze, kFreezeOnly);
  t.list("freeze_extra_modules")
      .implemented("freeze: further modules, outside of layers",
                   TROUPE_FIELD(finetuning.freeze_extra_modules))
      .only_where(trains_freeze, kFreezeOnly);
  t.list("troupe.trained_parameters")
      .implemented(
          "freeze: regular expressions; tensors whose names begin with a match are trained, and "
          "the freeze_* keys do not count",
          TROUPE_FIELD(finetuning.trained_parameters))
      .only_where(trains_freeze, kFreezeOnly);
  t.boolean("use_llama_pro", false)
      .implemented("train inserted layers only", TROUPE_FIELD(finetuning.use_llama_pro));
  const char* text_only = "only text models are trained; no effect on them";
  t.boolean("freeze_vision_tower", true).inert("freeze the vision tower", text_only);
  t.boolean("freeze_multi_modal_projector", true).inert("freeze the projector", text_only);
  t.boolean("freeze_language_model", false)
      .refused("freeze the language model", "then nothing would be trained", kLeaveOut);
}

}  // namespace

void add_finetuning_keys(KeyTable& table) {
  table.choice("finetuning_type", "lora", "lora|full|freeze|oft")
      .implemented("which parameters are trained", TROUPE_FIELD(finetuning.type))
      .refuses("oft", "OFT is not supported", "use finetuning_type: lora");
  add_lora_keys(table);
  add_oft_keys(table);
  add_freeze_keys(table);
}

void add_export_keys(KeyTable& t) {
  const char* reason = "belongs to `export`; training does not read it";
  const auto exports = [](const TrainConfig& config) {
    return config.finetuning.exported.export_dir.has_value();
  };
  t.choice("infer_dtype", "auto", "auto|float16|bfloat16|float32")
      .implemented("data type of inference and of an export", TROUPE_FIELD(finetuning.infer_dtype))
      .only_where(exports, "belongs to inference and `export`; training does not read it");
  t.optional("export_dir", ValueType::kText)
      .implemented("where `export` writes", TROUPE_FIELD(finetuning.exported.export_dir));
  t.integer("export_size", 5)
      .implemented("largest file of an export in GB",
                   TROUPE_FIELD(finetuning.exported.export_size_gb))
      .at_least(1)
      .only_where(exports, reason);
  t.choice("export_device", "cpu", "cpu|auto")
      .implemented("device of an export", TROUPE_FIELD(finetuning.exported.export_device))
      .only_where(exports, reason);
  t.optional("export_quantization_bit", ValueType::kInteger)
      .implemented("quantised export", TROUPE_FIELD(finetuning.exported.export_quantization_bit))
      .only_where(exports, reason);
  t.optional("export_quantization_dataset", ValueType::kText)
      .implemented("calibration data of an export",
                   TROUPE_FIELD(finetuning.exported.export_quantization_dataset))
      .only_where(exports, reason);
  t.integer("export_quantization_nsamples", 128)
      .implemented("calibration samples",
                   TROUPE_FIELD(finetuning.exported.export_quantization_nsamples))
      .only_where(exports, reason);
  t.integer("export_quantization_maxlen", 1024)
      .implemented("calibration length",
                   TROUPE_FIELD(finetuning.exported.export_quantization_maxlen))
      .only_where(exports, reason);
  t.boolean("export_legacy_format", false)
      .implemented(".bin files instead of safetensors",
                   TROUPE_FIELD(finetuning.exported.export_legacy_format))
      .only_where(exports, reason);
  t.optional("export_hub_model_id", ValueType::kText)
      .implemented("upload an export", TROUPE_FIELD(finetuning.exported.export_hub_model_id))
      .only_where(exports, reason);
  t.boolean("export_hf_on_finish", true)
      .inert("write Hugging Face's form at the end", "that form is always written")
      .refuses("false", "the final model is always in Hugging Face's form",
               "leave export_hf_on_finish out");
}

}  // namespace troupe::train

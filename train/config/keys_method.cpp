// Keys of LLaMA-Factory's FinetuningArguments, but for the optimizers' (keys_optimizer.cpp).
#include "train/config/key_builder.h"

namespace troupe::train {
namespace {

void add_task_keys(KeyTable& t) {
  t.choice("stage", "sft", "pt|sft|rm|ppo|dpo|kto")
      .implemented("pt: plain text; sft: instructions and answers", TROUPE_FIELD(method.stage))
      .refuses("rm|ppo|dpo|kto", "reward models and preference optimisation are not trained here",
               "use stage: pt or stage: sft");
  t.boolean("do_train", true)
      .inert("train", "training is what this command does")
      .refuses("false", "training is what this command does",
               "leave it out; `troupe verify` and `troupe generate` look at a trained model");
  t.boolean("do_predict", false)
      .refused("generate predictions", "prediction is not part of training here",
               "use `troupe generate` on the trained model");
  t.choice("finetuning_type", "lora", "lora|full|freeze|oft")
      .implemented("which parameters are trained", TROUPE_FIELD(method.finetuning_type))
      .refuses("lora|freeze|oft", "only the training of all parameters is there",
               "use finetuning_type: full");
  t.boolean("plot_loss", false)
      .implemented("write training_loss.png", TROUPE_FIELD(method.plot_loss));
  t.boolean("disable_shuffling", false)
      .implemented("file order in every epoch", TROUPE_FIELD(data.disable_shuffling));
  t.boolean("include_effective_tokens_per_second", false)
      .implemented("report the speed in non-padding tokens",
                   TROUPE_FIELD(method.include_effective_tokens_per_second));
}

void add_adapter_keys(KeyTable& t) {
  const char* reason = "LoRA is not supported";
  const char* instead = "use finetuning_type: full and leave the key out";
  // Without LoRA these two say nothing, and nearly every configuration carries them.
  t.integer("lora_rank", 8).inert("LoRA: rank", "no effect unless finetuning_type is lora");
  t.list("lora_target").inert("LoRA: layers", "no effect unless finetuning_type is lora");
  t.optional("lora_alpha", ValueType::kInteger)
      .inert("LoRA: scale", "no effect unless finetuning_type is lora");
  t.number("lora_dropout", 0).inert("LoRA: dropout", "no effect unless finetuning_type is lora");
  t.list("additional_target").refused("LoRA: further trained modules", reason, instead);
  t.boolean("use_rslora", false).refused("LoRA: scale by the root of the rank", reason, instead);
  t.boolean("use_dora", false).refused("LoRA: DoRA", reason, instead);
  t.optional("loraplus_lr_ratio", ValueType::kNumber).refused("LoRA+: ratio", reason, instead);
  t.number("loraplus_lr_embedding", 1e-6).refused("LoRA+: embedding", reason, instead);
  t.boolean("pissa_init", false).refused("LoRA: PiSSA start", reason, instead);
  t.integer("pissa_iter", 16).refused("LoRA: PiSSA iterations", reason, instead);
  t.boolean("pissa_convert", false).refused("LoRA: PiSSA conversion", reason, instead);
  t.boolean("create_new_adapter", false).refused("LoRA: a new adapter", reason, instead);
  t.number("module_dropout", 0).refused("OFT: dropout", "OFT is not supported", instead);
  t.integer("oft_rank", 0).refused("OFT: rank", "OFT is not supported", instead);
  t.integer("oft_block_size", 32).refused("OFT: block size", "OFT is not supported", instead);
  t.list("oft_target").refused("OFT: layers", "OFT is not supported", instead);
}

void add_freeze_keys(KeyTable& t) {
  const char* reason = "no effect unless finetuning_type is freeze";
  t.integer("freeze_trainable_layers", 2).inert("freeze: trained layers", reason);
  t.list("freeze_trainable_modules").inert("freeze: trained modules", reason);
  t.list("freeze_extra_modules").inert("freeze: further modules", reason);
  t.boolean("use_llama_pro", false)
      .refused("train inserted blocks only", "only the training of all parameters is there",
               kLeaveOut);
  const char* text_only = "only text models are trained; no effect on them";
  t.boolean("freeze_vision_tower", true).inert("freeze the vision tower", text_only);
  t.boolean("freeze_multi_modal_projector", true).inert("freeze the projector", text_only);
  t.boolean("freeze_language_model", false)
      .refused("freeze the language model", "then nothing would be trained", kLeaveOut);
}

void add_preference_keys(KeyTable& t) {
  const char* reason = "no effect unless stage is rm, ppo, dpo or kto";
  t.number("pref_beta", 0.1).inert("preference: β", reason);
  t.number("pref_ftx", 0).inert("preference: SFT loss", reason);
  t.number("pref_bco_weight", 0).inert("preference: BCO", reason);
  t.text("pref_loss", "sigmoid").inert("preference: loss", reason);
  t.number("dpo_label_smoothing", 0).inert("DPO: label smoothing", reason);
  t.number("kto_chosen_weight", 1).inert("KTO: weight of chosen", reason);
  t.number("kto_rejected_weight", 1).inert("KTO: weight of rejected", reason);
  t.number("simpo_gamma", 0.5).inert("SimPO: margin", reason);
  t.optional("ld_alpha", ValueType::kNumber).inert("LD-DPO: α", reason);
  t.integer("ppo_buffer_size", 1).inert("PPO: buffer", reason);
  t.integer("ppo_epochs", 4).inert("PPO: epochs", reason);
  t.boolean("ppo_score_norm", false).inert("PPO: normalise scores", reason);
  t.number("ppo_target", 6).inert("PPO: KL target", reason);
  t.boolean("ppo_whiten_rewards", false).inert("PPO: whiten rewards", reason);
  for (const auto* name :
       {"ref_model", "ref_model_adapters", "reward_model", "reward_model_adapters"}) {
    t.optional(name, ValueType::kText).inert("preference: another model", reason);
  }
  t.optional("ref_model_quantization_bit", ValueType::kInteger).inert("preference: bits", reason);
  t.optional("reward_model_quantization_bit", ValueType::kInteger).inert("PPO: bits", reason);
  t.text("reward_model_type", "lora").inert("PPO: kind of reward model", reason);
}

void add_loss_keys(KeyTable& t) {
  const char* reason =
      "the loss is cross entropy over target tokens, or with use_dft_loss that times the "
      "probability";
  t.boolean("use_dft_loss", false)
      .implemented(
          "sft: each token's loss is multiplied by its probability, a constant to the gradient",
          TROUPE_FIELD(method.use_dft_loss));
  t.boolean("use_asft_loss", false).refused("ASFT loss", reason, kLeaveOut);
  t.number("asft_alpha", 0.1).inert("ASFT: weight", "no effect without use_asft_loss");
  t.boolean("use_eaft_loss", false).refused("EAFT loss", reason, kLeaveOut);
  t.number("eaft_alpha", 1.0).inert("EAFT: weight", "no effect without use_eaft_loss");
}

}  // namespace

void add_method_keys(KeyTable& table) {
  add_task_keys(table);
  add_adapter_keys(table);
  add_freeze_keys(table);
  add_preference_keys(table);
  add_loss_keys(table);
}

}  // namespace troupe::train

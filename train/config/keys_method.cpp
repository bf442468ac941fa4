// Keys of LLaMA-Factory's FinetuningArguments, but for the optimizers' (keys_optimizer.cpp) and
// what is trained (keys_finetuning.cpp).
#include "train/config/key_builder.h"

namespace troupe::train {
namespace {

void add_task_keys(KeyTable& t) {
  t.choice("stage", "sft", "pt|sft|rm|ppo|dpo|kto")
      .implemented("pt: plain text; sft: instructions and answers", TROUPE_FIELD(method.stage))
      .refuses("rm|ppo|dpo|kto", "reward models and preference optimisation are not trained here",
               "use stage: pt or stage: sft");
  t.optional("do_train", ValueType::kBool)
      .implemented("train (default: unless do_predict is on)", TROUPE_FIELD(prediction.do_train));
  t.boolean("do_predict", false)
      .implemented(
          "answer the prompts of eval_dataset and score the answers, behind a training "
          "or alone",
          TROUPE_FIELD(prediction.do_predict));
  t.boolean("plot_loss", false)
      .implemented("write training_loss.png", TROUPE_FIELD(method.plot_loss));
  t.boolean("disable_shuffling", false)
      .implemented("file order in every epoch", TROUPE_FIELD(data.disable_shuffling));
  t.boolean("include_effective_tokens_per_second", false)
      .implemented("report the speed in non-padding tokens",
                   TROUPE_FIELD(method.include_effective_tokens_per_second));
}

void add_preference_keys(KeyTable& t) {
  const char* reason = "it belongs to the stages rm, ppo, dpo and kto";
  t.number("pref_beta", 0.1).inert("preference: β", reason).said();
  t.number("pref_ftx", 0).inert("preference: SFT loss", reason).said();
  t.number("pref_bco_weight", 0).inert("preference: BCO", reason).said();
  t.text("pref_loss", "sigmoid").inert("preference: loss", reason).said();
  t.number("dpo_label_smoothing", 0).inert("DPO: label smoothing", reason).said();
  t.number("kto_chosen_weight", 1).inert("KTO: weight of chosen", reason).said();
  t.number("kto_rejected_weight", 1).inert("KTO: weight of rejected", reason).said();
  t.number("simpo_gamma", 0.5).inert("SimPO: margin", reason).said();
  t.optional("ld_alpha", ValueType::kNumber).inert("LD-DPO: α", reason).said();
  t.integer("ppo_buffer_size", 1).inert("PPO: buffer", reason).said();
  t.integer("ppo_epochs", 4).inert("PPO: epochs", reason).said();
  t.boolean("ppo_score_norm", false).inert("PPO: normalise scores", reason).said();
  t.number("ppo_target", 6).inert("PPO: KL target", reason).said();
  t.boolean("ppo_whiten_rewards", false).inert("PPO: whiten rewards", reason).said();
  for (const auto* name :
       {"ref_model", "ref_model_adapters", "reward_model", "reward_model_adapters"}) {
    t.optional(name, ValueType::kText).inert("preference: another model", reason).said();
  }
  t.optional("ref_model_quantization_bit", ValueType::kInteger)
      .inert("preference: bits", reason)
      .said();
  t.optional("reward_model_quantization_bit", ValueType::kInteger)
      .inert("PPO: bits", reason)
      .said();
  t.text("reward_model_type", "lora").inert("PPO: kind of reward model", reason).said();
}

void add_loss_keys(KeyTable& t) {
  const char* reason =
      "the loss is cross entropy over target tokens, or that times a weight (use_dft_loss, "
      "use_eaft_loss)";
  const auto is_eaft = [](const TrainConfig& config) { return config.method.use_eaft_loss; };
  const char* of_eaft = "it belongs to use_eaft_loss";
  t.boolean("use_dft_loss", false)
      .implemented(
          "sft: each token's loss is multiplied by its probability, a constant to the gradient",
          TROUPE_FIELD(method.use_dft_loss));
  t.boolean("use_asft_loss", false).refused("ASFT loss", reason, kLeaveOut);
  t.number("asft_alpha", 0.1).inert("ASFT: weight", "it belongs to use_asft_loss").said();
  t.boolean("use_eaft_loss", false)
      .implemented(
          "sft: each token's loss is multiplied by a power of the model's entropy there, which is "
          "a "
          "constant to the gradient",
          TROUPE_FIELD(method.use_eaft_loss));
  t.number("eaft_alpha", 1.0)
      .implemented("the power", TROUPE_FIELD(method.eaft_alpha))
      .only_where(is_eaft, of_eaft);
  t.integer("troupe.eaft_top", 20)
      .implemented("EAFT: the entropy is of so many greatest logits", TROUPE_FIELD(method.eaft_top))
      .only_where(is_eaft, of_eaft);
  t.number("troupe.eaft_divisor", 3.0)
      .implemented("EAFT: the entropy is divided by this", TROUPE_FIELD(method.eaft_divisor))
      .only_where(is_eaft, of_eaft);
}

}  // namespace

void add_method_keys(KeyTable& table) {
  add_task_keys(table);
  add_finetuning_keys(table);
  add_preference_keys(table);
  add_loss_keys(table);
}

}  // namespace troupe::train

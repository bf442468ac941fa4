// Keys of LLaMA-Factory's FinetuningArguments, but for the optimizers' (keys_optimizer.cpp) and
// what is trained (keys_finetuning.cpp).
#include "train/config/key_builder.h"

namespace troupe::train {
namespace {

void add_task_keys(KeyTable& t) {
  t.choice("stage", "sft", "pt|sft|rm|ppo|dpo|kto")
      .implemented(
          "pt: plain text; sft: instructions and answers; rm: a reward model, of pairs of answers; "
          "dpo: preferences, of pairs; kto: preferences, of answers that are good or bad",
          TROUPE_FIELD(method.stage))
      .refuses("ppo", "nothing draws answers and scores them during a training",
               "use stage: dpo or kto, or pt or sft");
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

bool is_dpo(const TrainConfig& config) { return config.method.stage == TrainingStage::kDpo; }
bool is_kto(const TrainConfig& config) { return config.method.stage == TrainingStage::kKto; }
bool is_dpo_or_kto(const TrainConfig& config) { return is_dpo(config) || is_kto(config); }
bool has_reference(const TrainConfig& config) { return config.method.has_reference(); }
bool has_ref_model(const TrainConfig& config) {
  return has_reference(config) && config.method.ref_model.has_value();
}

void add_preference_keys(KeyTable& t) {
  const char* reason = "it belongs to stage: ppo";
  const char* of_dpo = "it belongs to stage: dpo";
  const char* of_kto = "it belongs to stage: kto";
  const char* of_both = "it belongs to the stages dpo and kto";
  t.number("pref_beta", 0.1)
      .implemented("preference: β", TROUPE_FIELD(method.pref_beta))
      .above(0)
      .only_where(is_dpo_or_kto, of_both);
  t.number("pref_ftx", 0)
      .implemented("preference: weight of the good answers' SFT loss",
                   TROUPE_FIELD(method.pref_ftx))
      .at_least(0)
      .only_where(is_dpo_or_kto, of_both);
  t.number("pref_bco_weight", 0)
      .refused("preference: weight of the BCO loss",
               "it compares rewards with a mean of the micro-batches before, which is not kept",
               kLeaveOut);
  t.choice("pref_loss", "sigmoid", "sigmoid|hinge|ipo|kto_pair|orpo|simpo")
      .implemented("dpo: the loss of a pair", TROUPE_FIELD(method.pref_loss))
      .refuses("kto_pair", "TRL has no such loss any more", "use stage: kto, or another pref_loss")
      .only_where(is_dpo, of_dpo);
  t.number("dpo_label_smoothing", 0)
      .implemented("dpo: the share of pairs that may be the wrong way round",
                   TROUPE_FIELD(method.dpo_label_smoothing))
      .at_least(0)
      .at_most(0.5)
      .only_where(is_dpo, of_dpo);
  t.number("kto_chosen_weight", 1)
      .implemented("kto: weight of good answers", TROUPE_FIELD(method.kto_chosen_weight))
      .at_least(0)
      .only_where(is_kto, of_kto);
  t.number("kto_rejected_weight", 1)
      .implemented("kto: weight of bad answers", TROUPE_FIELD(method.kto_rejected_weight))
      .at_least(0)
      .only_where(is_kto, of_kto);
  t.number("simpo_gamma", 0.5)
      .implemented("dpo: the margin of pref_loss: simpo", TROUPE_FIELD(method.simpo_gamma))
      .only_where(is_dpo, of_dpo);
  t.optional("ld_alpha", ValueType::kNumber)
      .implemented("dpo: how much tokens beyond the shorter answer's length count (LD-DPO)",
                   TROUPE_FIELD(method.ld_alpha))
      .at_least(0)
      .only_where(is_dpo, of_dpo);
  t.integer("ppo_buffer_size", 1).inert("PPO: buffer", reason).said();
  t.integer("ppo_epochs", 4).inert("PPO: epochs", reason).said();
  t.boolean("ppo_score_norm", false).inert("PPO: normalise scores", reason).said();
  t.number("ppo_target", 6).inert("PPO: KL target", reason).said();
  t.boolean("ppo_whiten_rewards", false).inert("PPO: whiten rewards", reason).said();
  t.optional("ref_model", ValueType::kText)
      .implemented(
          "dpo, kto, ASFT: the model to compare with, a folder (default: the model as it begins)",
          TROUPE_FIELD(method.ref_model))
      .only_where(has_reference,
                  "it belongs to stage: kto, to dpo but for orpo and simpo, and to use_asft_loss");
  t.list("ref_model_adapters")
      .implemented("dpo, kto, ASFT: adapters that are merged into ref_model",
                   TROUPE_FIELD(method.ref_model_adapters))
      .only_where(has_ref_model, "it belongs to ref_model");
  t.optional("ref_model_quantization_bit", ValueType::kInteger)
      .refused("preference: bits of ref_model", "ref_model is kept as it is", kLeaveOut);
  for (const auto* name : {"reward_model", "reward_model_adapters"})
    t.optional(name, ValueType::kText).inert("PPO: another model", reason).said();
  t.optional("reward_model_quantization_bit", ValueType::kInteger)
      .inert("PPO: bits", reason)
      .said();
  t.text("reward_model_type", "lora").inert("PPO: kind of reward model", reason).said();
}

void add_loss_keys(KeyTable& t) {
  const auto is_eaft = [](const TrainConfig& config) { return config.method.use_eaft_loss; };
  const char* of_eaft = "it belongs to use_eaft_loss";
  t.boolean("use_dft_loss", false)
      .implemented(
          "sft: each token's loss is multiplied by its probability, a constant to the gradient",
          TROUPE_FIELD(method.use_dft_loss));
  t.boolean("use_asft_loss", false)
      .implemented(
          "sft: the loss of use_dft_loss, and the divergence from the model as it begins; "
          "means of micro-batches, which are not divided by their number",
          TROUPE_FIELD(method.use_asft_loss));
  t.number("asft_alpha", 0.1)
      .implemented("ASFT: weight of the divergence", TROUPE_FIELD(method.asft_alpha))
      .at_least(0)
      .only_where([](const TrainConfig& config) { return config.method.use_asft_loss; },
                  "it belongs to use_asft_loss");
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

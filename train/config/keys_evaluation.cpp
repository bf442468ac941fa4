// Keys of evaluation during a run, from DataArguments, FinetuningArguments and TrainingArguments.
#include "train/config/key_builder.h"

namespace troupe::train {
namespace {

constexpr const char* kOnlyLoss = "the loss is what an evaluation measures";

bool evaluates_between_steps(const TrainConfig& config) {
  return config.evaluation.strategy != IntervalStrategy::kNo;
}
bool evaluates(const TrainConfig& config) {
  const auto& evaluation = config.evaluation;
  return evaluates_between_steps(config) || evaluation.do_eval || evaluation.on_start ||
         config.troupe.held_out > 0;
}
constexpr const char* kEvaluationsOnly = "nothing is evaluated: eval_strategy is no";

void add_when_keys(KeyTable& t) {
  t.boolean("do_eval", false)
      .implemented("evaluate at the end (also where eval_strategy is set)",
                   TROUPE_FIELD(evaluation.do_eval));
  t.choice("eval_strategy", "no", "no|steps|epoch")
      .implemented("when to evaluate", TROUPE_FIELD(evaluation.strategy));
  t.optional("eval_steps", ValueType::kNumber)
      .implemented("steps between evaluations (default: logging_steps); below 1 a ratio",
                   TROUPE_FIELD(evaluation.eval_steps))
      .above(0)
      .only_where(
          [](const TrainConfig& config) {
            return config.evaluation.strategy == IntervalStrategy::kSteps;
          },
          "it belongs to eval_strategy: steps");
  t.number("eval_delay", 0)
      .implemented("steps or epochs, as eval_strategy counts, before the first evaluation",
                   TROUPE_FIELD(evaluation.delay))
      .at_least(0)
      .at_most(1e12)
      .only_where(evaluates_between_steps, kEvaluationsOnly);
  t.boolean("eval_on_start", false)
      .implemented("evaluate before the first step", TROUPE_FIELD(evaluation.on_start));
  t.integer("per_device_eval_batch_size", 8)
      .implemented("sequences of an evaluation batch on each rank",
                   TROUPE_FIELD(evaluation.per_device_eval_batch_size))
      .at_least(1)
      .at_most(1 << 20)
      .only_where(evaluates, kEvaluationsOnly);
}

void add_eval_data_keys(KeyTable& t) {
  t.list("eval_dataset")
      .implemented("data sets to evaluate on, names in dataset_info.json",
                   TROUPE_FIELD(evaluation.eval_dataset))
      .only_where(evaluates, kEvaluationsOnly);
  t.number("val_size", 0)
      .implemented("part of the data kept for evaluation: above 1 samples, else a share",
                   TROUPE_FIELD(evaluation.val_size))
      .at_least(0)
      .at_most(1e12);
  t.boolean("eval_on_each_dataset", false)
      .refused("evaluate data sets apart", "an evaluation gives one loss over all its data",
               "use eval_on_each_dataset: false");
}

void add_best_keys(KeyTable& t) {
  t.boolean("load_best_model_at_end", false)
      .implemented("end with the checkpoint that evaluated best",
                   TROUPE_FIELD(evaluation.load_best_model_at_end));
  t.optional("metric_for_best_model", ValueType::kText)
      .implemented("what is compared: eval_loss", TROUPE_FIELD(evaluation.metric_for_best_model))
      .only_where(evaluates_between_steps, kEvaluationsOnly);
  t.optional("greater_is_better", ValueType::kBool)
      .implemented("whether a larger metric is better (default: not for a loss)",
                   TROUPE_FIELD(evaluation.greater_is_better))
      .only_where(evaluates_between_steps, kEvaluationsOnly);
  t.optional("early_stopping_steps", ValueType::kInteger)
      .implemented("stop after so many evaluations in a row without improvement",
                   TROUPE_FIELD(evaluation.early_stopping_steps))
      .at_least(1)
      .at_most(1e12);
}

void add_unused_keys(KeyTable& t) {
  t.boolean("compute_accuracy", false)
      .refused("token accuracy when evaluating", kOnlyLoss, kLeaveOut);
  t.boolean("predict_with_generate", false).refused("evaluate by generating", kOnlyLoss, kLeaveOut);
  t.boolean("bf16_full_eval", false)
      .inert("evaluate in bf16", "an evaluation computes as training does");
  t.boolean("fp16_full_eval", false)
      .refused("evaluate in fp16", "an evaluation computes as training does, and fp16 is not there",
               "use bf16: true and leave fp16_full_eval out");
  t.optional("eval_num_beams", ValueType::kInteger)
      .inert("beams when evaluating", "an evaluation generates nothing");
  t.optional("eval_accumulation_steps", ValueType::kInteger)
      .inert("how many logits are kept on the device", "logits are not kept");
  t.boolean("prediction_loss_only", false)
      .inert("measure the loss alone", "that is what an evaluation does");
  for (const auto* name :
       {"batch_eval_metrics", "include_for_metrics", "include_inputs_for_metrics",
        "eval_do_concat_batches", "eval_use_gather_object"}) {
    t.optional(name, ValueType::kAny).inert("metrics of one's own", kOnlyLoss);
  }
  for (const auto* name : {"generation_max_length", "generation_num_beams", "generation_config"}) {
    t.optional(name, ValueType::kAny)
        .inert("generation when evaluating", "an evaluation generates nothing");
  }
}

}  // namespace

void add_evaluation_keys(KeyTable& table) {
  add_when_keys(table);
  add_eval_data_keys(table);
  add_best_keys(table);
  add_unused_keys(table);
}

}  // namespace troupe::train

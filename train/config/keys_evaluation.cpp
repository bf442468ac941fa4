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
bool uses_eval_data(const TrainConfig& config) {
  return evaluates(config) || config.prediction.do_predict;
}
bool predicts(const TrainConfig& config) { return config.prediction.do_predict; }
constexpr const char* kPredictionsOnly = "nothing is generated: do_predict is false";
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
      .only_where(uses_eval_data, kEvaluationsOnly);
}

void add_eval_data_keys(KeyTable& t) {
  t.list("eval_dataset")
      .implemented("data sets to evaluate on, names in dataset_info.json",
                   TROUPE_FIELD(evaluation.eval_dataset))
      .only_where(uses_eval_data, kEvaluationsOnly);
  t.number("val_size", 0)
      .implemented("part of the data kept for evaluation: above 1 samples, else a share",
                   TROUPE_FIELD(evaluation.val_size))
      .at_least(0)
      .at_most(1e12);
  t.boolean("eval_on_each_dataset", false)
      .implemented("each data set of eval_dataset has metrics of its own: eval_NAME_loss",
                   TROUPE_FIELD(evaluation.on_each_dataset))
      .only_where(
          [](const TrainConfig& config) {
            return evaluates(config) && !config.evaluation.eval_dataset.empty();
          },
          "it belongs to evaluations on eval_dataset");
}

void add_best_keys(KeyTable& t) {
  t.boolean("compute_accuracy", false)
      .implemented(
          "eval_accuracy: the mean over samples of how many of their targets are the most "
          "probable token",
          TROUPE_FIELD(evaluation.compute_accuracy))
      .only_where(
          [](const TrainConfig& config) {
            return evaluates(config) && config.method.stage == TrainingStage::kSupervised;
          },
          "it belongs to evaluations in stage sft");
  t.boolean("load_best_model_at_end", false)
      .implemented("end with the checkpoint that evaluated best",
                   TROUPE_FIELD(evaluation.load_best_model_at_end));
  t.optional("metric_for_best_model", ValueType::kText)
      .implemented("what is compared: eval_loss or eval_accuracy",
                   TROUPE_FIELD(evaluation.metric_for_best_model))
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
  for (const char* name : {"bf16_full_eval", "fp16_full_eval"})
    t.boolean(name, false).inert("what to evaluate in", "an evaluation computes as training does");
  t.optional("eval_num_beams", ValueType::kInteger)
      .inert("beams when evaluating", "num_beams is that of predictions, as in LLaMA-Factory");
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
        .inert("generation when evaluating",
               "max_new_tokens and num_beams are those of predictions, as in LLaMA-Factory");
  }
}

void add_prediction_keys(KeyTable& t) {
  t.boolean("predict_with_generate", false)
      .implemented("predictions are generated texts", TROUPE_FIELD(prediction.with_generate));
  t.boolean("do_sample", true)
      .implemented("predictions: draw tokens; false: the likeliest one",
                   TROUPE_FIELD(prediction.do_sample))
      .only_where(predicts, kPredictionsOnly);
  t.number("temperature", 0.95)
      .implemented("predictions: temperature; 0: the likeliest token",
                   TROUPE_FIELD(prediction.temperature))
      .at_least(0)
      .at_most(1e6)
      .only_where(predicts, kPredictionsOnly);
  t.number("top_p", 0.7)
      .implemented("predictions: the likeliest tokens that have this probability together",
                   TROUPE_FIELD(prediction.top_p))
      .above(0)
      .at_most(1)
      .only_where(predicts, kPredictionsOnly);
  t.integer("top_k", 50)
      .implemented("predictions: so many candidates; 0: all", TROUPE_FIELD(prediction.top_k))
      .at_least(-1)
      .at_most(1 << 30)
      .only_where(predicts, kPredictionsOnly);
  t.integer("num_beams", 1)
      .implemented("predictions: beams; there is one", TROUPE_FIELD(prediction.num_beams))
      .at_least(1)
      .at_most(1 << 20)
      .only_where(predicts, kPredictionsOnly);
  t.integer("max_length", 1024)
      .implemented("predictions: tokens of prompt and answer, where max_new_tokens is not above 0",
                   TROUPE_FIELD(prediction.max_length))
      .at_least(1)
      .at_most(1 << 24)
      .only_where(predicts, kPredictionsOnly);
  t.integer("max_new_tokens", 1024)
      .implemented("predictions: tokens of an answer", TROUPE_FIELD(prediction.max_new_tokens))
      .at_most(1 << 24)
      .only_where(predicts, kPredictionsOnly);
  t.number("repetition_penalty", 1.0)
      .implemented("predictions: what logits of tokens that were there are divided by",
                   TROUPE_FIELD(prediction.repetition_penalty))
      .above(0)
      .at_most(1e6)
      .only_where(predicts, kPredictionsOnly);
  t.boolean("skip_special_tokens", true)
      .implemented("leave special tokens out of generated_predictions.jsonl",
                   TROUPE_FIELD(prediction.skip_special_tokens))
      .only_where(predicts, kPredictionsOnly);
  t.number("length_penalty", 1.0)
      .inert("generation: length penalty", "it weighs beams against each other, and there is one");
}

}  // namespace

void add_evaluation_keys(KeyTable& table) {
  add_when_keys(table);
  add_eval_data_keys(table);
  add_best_keys(table);
  add_prediction_keys(table);
  add_unused_keys(table);
}

}  // namespace troupe::train

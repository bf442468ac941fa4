// What the keys of evaluation must say together. Rules and texts: LLaMA-Factory's hparams parser,
// transformers' TrainingArguments.
#include <cmath>

#include "runtime/base/suggest.h"
#include "train/config/rules.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

bool is_given(const json::Object& values, std::string_view key) {
  const auto* value = values.if_contains({key.data(), key.size()});
  return value && !value->is_null();
}

std::string word(IntervalStrategy strategy) {
  const auto value = to_value(strategy);
  return std::string(value.get_string().data(), value.get_string().size());
}

class Checker {
 public:
  Checker(const TrainConfig& config, const json::Object& values, Problems& problems)
      : config_(config), evaluation_(config.evaluation), values_(values), problems_(problems) {}

  void check() {
    check_data();
    check_intervals();
    check_metric();
    check_best();
    check_prediction();
  }

 private:
  void wrong(std::string_view key, std::string_view message) {
    problems_.add(Code::kInvalidArgument, key, message);
  }

  // The key that asks for an evaluation, or nothing.
  std::string_view asked_by() const {
    if (is_on(values_, "do_eval")) return "do_eval";
    if (evaluation_.strategy != IntervalStrategy::kNo) return "eval_strategy";
    if (evaluation_.on_start) return "eval_on_start";
    return {};
  }

  void check_data() {
    const double size = evaluation_.val_size;
    const bool has_data = !evaluation_.eval_dataset.empty() ||
                          !config_.data.rows.eval_datasets.empty() || size > 1e-6;
    if (!asked_by().empty() && !has_data) {
      wrong(asked_by(), "Please make sure eval_dataset be provided or val_size >1e-6");
    }
    if (size > 1e-6 && !evaluation_.eval_dataset.empty()) {
      wrong("val_size", "Cannot specify `val_size` if `eval_dataset` is not None.");
    }
    if (size == 1) {
      wrong("val_size", "1 leaves nothing to train on: below 1 is a share, above 1 samples");
    } else if (size > 1 && size != std::floor(size)) {
      wrong("val_size", fmt::format("{} is neither a whole number of samples nor a share", size));
    }
    if (size > 1e-6 && config_.troupe.held_out > 0) {
      wrong("troupe.held_out",
            fmt::format("troupe.held_out={} and val_size={} both keep data back; "
                        "leave one of them out",
                        config_.troupe.held_out, size));
    }
  }

  void check_intervals() {
    const auto& steps = evaluation_.eval_steps;
    if (steps && *steps > 1 && *steps != std::floor(*steps)) {
      wrong("eval_steps",
            fmt::format("{} is neither a whole number of steps nor a ratio below 1", *steps));
    }
    if (config_.training.save_strategy == IntervalStrategy::kBest &&
        evaluation_.strategy == IntervalStrategy::kNo) {
      wrong("save_strategy",
            "best saves when an evaluation was the best so far, and eval_strategy is no; use "
            "eval_strategy: steps or epoch");
    }
    if (evaluation_.early_stopping_steps && evaluation_.strategy == IntervalStrategy::kNo) {
      wrong("early_stopping_steps",
            "it counts evaluations, and eval_strategy is no; use eval_strategy: steps or epoch");
    }
  }

  void check_metric() {
    const auto& metric = evaluation_.metric_for_best_model;
    const auto set = evaluation_.dataset_of_metric();
    if (evaluation_.is_by_dataset() && !set) {
      const bool compares = evaluation_.load_best_model_at_end ||
                            evaluation_.early_stopping_steps ||
                            config_.training.save_strategy == IntervalStrategy::kBest ||
                            config_.training.lr_scheduler_type == "reduce_lr_on_plateau";
      if (!compares && metric == "eval_loss") return;
      wrong("metric_for_best_model",
            fmt::format("'{}' is not found in the evaluation metrics. The available evaluation "
                        "metrics are: {} (eval_on_each_dataset: true)",
                        metric, join_words(metrics_by_dataset(), ", ")));
      return;
    }
    if (set && metric.ends_with("_loss")) return;
    if (set && config_.measures_accuracy()) return;
    problems_.add_named(
        Code::kUnsupported, "metric_for_best_model",
        fmt::format("metric_for_best_model={} is not supported: an evaluation measures eval_loss, "
                    "and in stage sft with compute_accuracy: true eval_accuracy",
                    metric));
  }

  std::vector<std::string> metrics_by_dataset() const {
    std::vector<std::string> out;
    for (const auto& name : evaluation_.eval_dataset) {
      out.push_back(fmt::format("eval_{}_loss", name));
      if (config_.measures_accuracy()) out.push_back(fmt::format("eval_{}_accuracy", name));
    }
    return out;
  }

  // transformers' check, with its texts.
  void check_best() {
    const auto saves = config_.training.save_strategy;
    if (!evaluation_.load_best_model_at_end || saves == IntervalStrategy::kBest) return;
    if (evaluation_.strategy != saves) {
      wrong("load_best_model_at_end",
            fmt::format("--load_best_model_at_end requires the save and eval strategy to match, "
                        "except when --save_strategy=\"best\", but found\n- Evaluation strategy: "
                        "{}\n- Save strategy: {}",
                        word(evaluation_.strategy), word(saves)));
      return;
    }
    if (saves == IntervalStrategy::kNo) {
      wrong("load_best_model_at_end",
            "there is no best checkpoint where eval_strategy and save_strategy are no");
    }
    if (saves == IntervalStrategy::kSteps) check_multiple();
  }

  void check_multiple() {
    const double save = config_.training.save_steps;
    const double eval = evaluation_.eval_steps.value_or(config_.training.logging_steps);
    if ((save < 1) != (eval < 1)) {
      wrong("load_best_model_at_end",
            fmt::format("--load_best_model_at_end requires the saving steps to be a multiple of "
                        "the evaluation steps, which cannot get guaranteed when mixing ratio and "
                        "absolute steps for save_steps {} and eval_steps {}.",
                        json::python_float(save), json::python_float(eval)));
      return;
    }
    const double quotient = save / eval;
    if (std::fabs(quotient - std::round(quotient)) < 1e-6 && quotient > 0.5) return;
    wrong("load_best_model_at_end",
          fmt::format("--load_best_model_at_end requires the saving steps to be a round multiple "
                      "of the evaluation steps, but found {}, which is not a round multiple of {}.",
                      save, eval));
  }

  // LLaMA-Factory's rules, with its texts; what of predictions is not done.
  void check_prediction() {
    const PredictionSection& prediction = config_.prediction;
    if (!config_.trains() && !prediction.do_predict) {
      problems_.add_named(
          Code::kUnsupported, "do_train",
          "do_train=false is not supported without do_predict: training and predicting are what "
          "this command does; leave it out, or look at a trained model with `troupe verify`, "
          "`troupe generate` and `troupe chat`");
    }
    if (prediction.with_generate && is_on(values_, "compute_accuracy"))
      wrong("compute_accuracy",
            "Cannot use `predict_with_generate` and `compute_accuracy` together.");
    if (prediction.with_generate && !asked_by().empty()) {
      problems_.add_named(
          Code::kUnsupported, "predict_with_generate",
          fmt::format("predict_with_generate=true is not supported with {}: an evaluation measures "
                      "the loss; use do_predict: true, which generates behind the training or "
                      "alone, and leave {} out",
                      asked_by(), asked_by()));
    } else if (!config_.trains() && !asked_by().empty()) {
      wrong(asked_by(), "an evaluation is part of a training, and do_predict alone does not train");
    }
    if (!prediction.do_predict) return;
    if (config_.method.stage != TrainingStage::kSupervised) {
      problems_.add_named(Code::kUnsupported, "do_predict",
                          "do_predict=true is not supported outside of stage: sft: predictions "
                          "are answers to prompts; leave it out");
      return;
    }
    if (evaluation_.eval_dataset.empty()) {
      wrong("do_predict",
            evaluation_.val_size > 1e-6
                ? "Cannot use `predict_with_generate` if `eval_dataset` is None. (the rows to "
                  "answer are those of eval_dataset, not val_size's)"
                : "Please make sure eval_dataset be provided or val_size >1e-6 (to predict, "
                  "eval_dataset: its rows are answered)");
    }
    if (!prediction.with_generate)
      wrong("do_predict", "Please enable `predict_with_generate` to save model predictions.");
    if (prediction.num_beams > 1) {
      problems_.add_named(
          Code::kUnsupported, "num_beams",
          fmt::format("num_beams={} is not supported: an answer is generated token by token; use "
                      "num_beams: 1",
                      prediction.num_beams));
    }
  }

  const TrainConfig& config_;
  const EvaluationSection& evaluation_;
  const json::Object& values_;
  Problems& problems_;
};

}  // namespace

std::optional<std::string> EvaluationSection::dataset_of_metric() const {
  // As transformers: "loss" is "eval_loss".
  const auto& metric = metric_for_best_model;
  const std::string whole = metric.starts_with("eval_") ? metric : "eval_" + metric;
  const auto is_of = [&](const std::string& prefix) {
    return whole == prefix + "loss" || whole == prefix + "accuracy";
  };
  if (!is_by_dataset()) return is_of("eval_") ? std::optional<std::string>("") : std::nullopt;
  for (const auto& name : eval_dataset)
    if (is_of(fmt::format("eval_{}_", name))) return name;
  return std::nullopt;
}

void check_evaluation(const TrainConfig& config, const json::Object& values, Problems& problems) {
  Checker(config, values, problems).check();
  // What is said once about data, whoever reads them.
  if (is_on(values, "streaming") && is_given(values, "val_size")) {
    const double size = config.evaluation.val_size;
    if (size > 1e-6 && size < 1) {
      problems.add(Code::kInvalidArgument, "val_size",
                   "Streaming mode should have an integer val size.");
    }
  }
}

}  // namespace troupe::train

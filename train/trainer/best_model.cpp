#include "train/trainer/best_model.h"

#include <charconv>
#include <cmath>

#include "runtime/base/file_system.h"

namespace troupe::train {
namespace {

// "checkpoint-40" → 40.
std::optional<std::int64_t> step_of_checkpoint(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  const auto dash = path.rfind('-');
  if (dash == std::string_view::npos) return std::nullopt;
  std::int64_t step = 0;
  const char* end = path.data() + path.size();
  const auto parsed = std::from_chars(path.data() + dash + 1, end, step);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return step;
}

}  // namespace

bool EvaluationPlan::due(std::int64_t step, bool last_of_epoch) const {
  switch (strategy) {
    case IntervalStrategy::kNo:
    case IntervalStrategy::kBest:
      return false;
    case IntervalStrategy::kSteps:
      return delay <= static_cast<double>(step) &&
             (step % interval == 0 || step >= schedule.total_steps);
    case IntervalStrategy::kEpoch:
      return delay <= schedule.epoch_of(step) && (last_of_epoch || step >= schedule.total_steps);
  }
  return false;
}

bool EvaluationPlan::due_at_end(std::int64_t final_step,
                                std::optional<std::int64_t> last_evaluated_step) const {
  return at_end && last_evaluated_step != final_step;
}

double eval_steps_value(const TrainConfig& config) {
  return config.evaluation.eval_steps.value_or(config.training.logging_steps);
}

EvaluationPlan plan_evaluation(const TrainConfig& config, const RunSchedule& schedule) {
  const EvaluationSection& evaluation = config.evaluation;
  EvaluationPlan plan{.strategy = evaluation.strategy,
                      .delay = evaluation.delay,
                      .on_start = evaluation.on_start,
                      .at_end = evaluation.do_eval || evaluation.strategy != IntervalStrategy::kNo,
                      .schedule = schedule};
  if (plan.strategy == IntervalStrategy::kSteps) {
    plan.interval = step_interval(eval_steps_value(config), schedule.total_steps);
  }
  return plan;
}

Result<BestModel> BestModel::make(const EvaluationSection& evaluation,
                                  IntervalStrategy save_strategy) {
  const std::string& metric = evaluation.metric_for_best_model;
  const bool compares = evaluation.load_best_model_at_end || evaluation.early_stopping_steps ||
                        save_strategy == IntervalStrategy::kBest;
  const auto set = evaluation.dataset_of_metric();
  const bool measured = set && (!metric.ends_with("accuracy") || evaluation.compute_accuracy);
  if (!measured && (compares || !evaluation.is_by_dataset())) {
    return error(
        Code::kUnsupported,
        "metric_for_best_model={} is not supported: evaluations have eval_loss, and eval_accuracy "
        "with compute_accuracy: true; with eval_on_each_dataset: true those of a data set "
        "(eval_NAME_loss)",
        metric);
  }
  if (evaluation.early_stopping_steps && *evaluation.early_stopping_steps < 1) {
    return error(Code::kInvalidArgument, "early_stopping_steps={}: must be at least 1",
                 *evaluation.early_stopping_steps);
  }
  return BestModel(evaluation, save_strategy);
}

BestModel::BestModel(const EvaluationSection& evaluation, IntervalStrategy save_strategy)
    : enabled_(evaluation.load_best_model_at_end || evaluation.early_stopping_steps.has_value() ||
               save_strategy == IntervalStrategy::kBest),
      by_accuracy_(evaluation.metric_for_best_model.ends_with("accuracy")),
      // transformers: not for metrics whose name ends in "loss".
      greater_is_better_(evaluation.greater_is_better.value_or(by_accuracy_)),
      saves_best_(save_strategy == IntervalStrategy::kBest),
      patience_(evaluation.early_stopping_steps) {}

double BestModel::value_of(const EvalResult& result) const {
  return by_accuracy_ ? result.metrics.sums[0] / result.metrics.counts[0] : result.loss;
}

bool BestModel::evaluated(const EvalResult& result, std::int64_t step) {
  if (!enabled_) return false;
  const double value = value_of(result);
  const bool comparable =
      std::isfinite(value) && std::isfinite(result.loss) && result.non_finite_batches == 0;
  const bool better =
      comparable && (state_.best_step < 0 || (greater_is_better_ ? value > state_.best_metric
                                                                 : value < state_.best_metric));
  if (better) {
    state_.best_metric = value;
    state_.best_step = step;
    state_.misses = 0;
  } else {
    ++state_.misses;
  }
  return better;
}

bool BestModel::should_stop() const { return patience_ && state_.misses >= *patience_; }

bool BestModel::save_due(std::int64_t step) const {
  return saves_best_ && state_.best_step == step;
}

void BestModel::saving(std::int64_t step) {
  if (!enabled_) return;
  checkpoint_before_ = state_.checkpoint_step;
  if (state_.best_step == step) state_.checkpoint_step = step;
}

void BestModel::save_failed(std::int64_t step) {
  if (state_.checkpoint_step == step) state_.checkpoint_step = checkpoint_before_;
}

std::vector<std::int64_t> BestModel::protected_steps() const {
  if (state_.checkpoint_step < 0) return {};
  return {state_.checkpoint_step};
}

std::optional<std::int64_t> BestModel::best_checkpoint_step() const {
  if (state_.checkpoint_step < 0) return std::nullopt;
  return state_.checkpoint_step;
}

void BestModel::store(TrainerState& state, const std::string& output_dir) const {
  if (!enabled_) return;
  if (state_.best_step >= 0) {
    state.best_metric = state_.best_metric;
    state.best_global_step = state_.best_step;
  }
  if (state_.checkpoint_step >= 0) {
    const bool named = state.best_model_checkpoint &&
                       step_of_checkpoint(*state.best_model_checkpoint) == state_.checkpoint_step;
    if (!named) {
      state.best_model_checkpoint =
          join_path(output_dir, fmt::format("checkpoint-{}", state_.checkpoint_step));
    }
  } else {
    state.best_model_checkpoint.reset();
  }
  if (patience_) state.early_stopping = EarlyStoppingState{*patience_, state_.misses};
}

void BestModel::restore(const TrainerState& state) {
  if (!enabled_) return;
  BestModelState restored;
  if (state.best_metric && std::isfinite(*state.best_metric) && state.best_global_step) {
    restored.best_metric = *state.best_metric;
    restored.best_step = *state.best_global_step;
  }
  if (state.best_model_checkpoint) {
    restored.checkpoint_step = step_of_checkpoint(*state.best_model_checkpoint).value_or(-1);
  }
  if (state.early_stopping) restored.misses = state.early_stopping->counter;
  set_state(restored);
}

void BestModel::set_state(const BestModelState& state) {
  state_ = state;
  checkpoint_before_ = state.checkpoint_step;
}

}  // namespace troupe::train

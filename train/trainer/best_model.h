#pragma once
// When a run is evaluated, which model was the best so far, and when to stop early. Pure: every
// rank keeps its own copy, feeds it the same results and so decides the same.
//
// Rules: transformers 5 (DefaultFlowCallback, Trainer._determine_best_metric,
// EarlyStoppingCallback). Order at a step: log, evaluate, save.

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/base/status.h"
#include "train/config/derived.h"
#include "train/config/train_config.h"
#include "train/report/best_model_state.h"
#include "train/report/trainer_state.h"
#include "train/trainer/evaluator.h"

namespace troupe::train {

// The evaluations of a run.
struct EvaluationPlan {
  IntervalStrategy strategy = IntervalStrategy::kNo;  // kNo, kSteps, kEpoch
  std::int64_t interval = 0;                          // with kSteps
  double delay = 0;  // steps or epochs, by the strategy, before the first one
  bool on_start = false;
  bool at_end = false;  // do_eval, or any strategy: once more with the final parameters
  RunSchedule schedule;

  // Whether anything is evaluated, so that an evaluation data set is needed.
  bool evaluates() const { return strategy != IntervalStrategy::kNo || on_start || at_end; }
  // Before the first step of a run that begins (a resumed one has had it).
  bool due_on_start() const { return on_start; }
  // After `step`. The last step of a run is due whatever the interval (steps), and ends an epoch
  // even where it lies in the middle of one (epoch).
  bool due(std::int64_t step, bool last_of_epoch) const;
  // At the end, for eval_results.json: whether no evaluation was made of the parameters of
  // `final_step` (the last one, or the best model's). An evaluation is not made twice, as the same
  // parameters give the same bits; transformers does.
  bool due_at_end(std::int64_t final_step, std::optional<std::int64_t> last_evaluated_step) const;
};
// eval_steps defaults to logging_steps; below 1 it is a ratio of all steps, rounded up.
EvaluationPlan plan_evaluation(const TrainConfig& config, const RunSchedule& schedule);
// The value for trainer_state.json's "eval_steps".
double eval_steps_value(const TrainConfig& config);

class BestModel {
 public:
  // kUnsupported naming metric_for_best_model where evaluations do not have it: they have eval_loss
  // ("loss"), and eval_accuracy with compute_accuracy.
  static Result<BestModel> make(const EvaluationSection& evaluation,
                                IntervalStrategy save_strategy);

  // Whether the run keeps track of the best model: load_best_model_at_end, early_stopping_steps,
  // save_strategy: best, or a metric other than the default. Otherwise nothing below has an effect.
  bool enabled() const { return enabled_; }

  // What of an evaluation metric_for_best_model names.
  double value_of(const EvalResult& result) const;
  // An evaluation after `step`. Returns whether it is the best so far; a result with a loss that is
  // not finite, or with batches that were not, never is.
  bool evaluated(const EvalResult& result, std::int64_t step);
  // early_stopping_steps evaluations in a row were no better: training ends after this step (its
  // checkpoint, where one is due, is still written).
  bool should_stop() const;

  // Whether save_strategy: best saves at `step`: its evaluation was the best so far. False for the
  // other strategies.
  bool save_due(std::int64_t step) const;
  // checkpoint-`step` is being written: if it holds the best model, it becomes
  // best_model_checkpoint. Before the state that goes into the checkpoint is taken.
  void saving(std::int64_t step);
  // It was not written: what was best_model_checkpoint before is it again.
  void save_failed(std::int64_t step);

  // Steps of checkpoints that save_total_limit must not remove.
  std::vector<std::int64_t> protected_steps() const;
  // The checkpoint that load_best_model_at_end loads; none: the final model stays.
  std::optional<std::int64_t> best_checkpoint_step() const;

  // best_metric, best_global_step, best_model_checkpoint (in `output_dir`, unless the state names a
  // folder elsewhere for the same step) and the state of early stopping.
  void store(TrainerState& state, const std::string& output_dir) const;
  // The inverse, for a resumed run.
  void restore(const TrainerState& state);
  const BestModelState& state() const { return state_; }
  void set_state(const BestModelState& state);

 private:
  BestModel(const EvaluationSection& evaluation, IntervalStrategy save_strategy);

  bool enabled_ = false;
  bool by_accuracy_ = false;
  bool greater_is_better_ = false;
  bool saves_best_ = false;
  std::optional<std::int64_t> patience_;
  BestModelState state_;
  std::int64_t checkpoint_before_ = -1;
};

}  // namespace troupe::train

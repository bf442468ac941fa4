#pragma once
// What rank 0 writes about a run while it trains: steps.jsonl, trainer_log.jsonl, the log history
// of trainer_state.json, evaluations, and the results at the end. Ranks that hold the same state as
// rank 0 keep the same history, without files, so that it is not lost with rank 0's machine.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "train/config/derived.h"
#include "train/config/train_config.h"
#include "train/report/step_log.h"
#include "train/report/tensorboard.h"
#include "train/report/trainer_state.h"
#include "train/trainer/best_model.h"
#include "train/trainer/evaluator.h"
#include "troupe/log.h"

namespace troupe::train {

// Facts of a run that its reports need.
struct RunFacts {
  RunSchedule schedule;
  double flos_per_token = 0;
  std::int64_t dataset_tokens = 0;
  int world_size = 1;
  std::int64_t first_step = 0;  // done before the run began: of the checkpoint it was begun from
  std::int64_t started_unix_us = 0;               // of the run, not of this process
  std::span<const MetricInfo> metrics = {};       // of its objective
  std::span<const MetricInfo> eval_metrics = {};  // of its evaluations
};

// Losses of the steps since the last one that was logged.
struct Unlogged {
  double loss = 0;  // their sum
  std::int64_t steps = 0;
  MetricSums metrics = {};
};
// The member of a line of steps.jsonl that has an objective's metrics: sums and counts.
inline constexpr const char* kMetricsKey = "metrics";

// Where a recorder goes on that another process left.
struct RecorderPosition {
  std::int64_t kept_step = -1;  // lines of later steps are dropped; -1: of all steps
  Unlogged unlogged;
};

class RunRecorder {
 public:
  // Opens the files with what belongs to steps up to `state.global_step`; later lines are dropped.
  // Without a position the steps that were not logged are read from steps.jsonl.
  static Result<RunRecorder> open(FileSystem& files, const Clock& clock, const TrainConfig& config,
                                  const RunFacts& facts, TrainerState state,
                                  const std::optional<RecorderPosition>& position = {});
  // Writes nothing: finish() and sync() are not for it.
  static RunRecorder without_files(FileSystem& files, const Clock& clock, const TrainConfig& config,
                                   const RunFacts& facts, TrainerState state,
                                   const RecorderPosition& position);

  // Gets every entry that log_history gets from now on.
  void on_history(std::function<void(const json::Object&)> sink) { on_history_ = std::move(sink); }
  // Is told why there is no event file (report_to: tensorboard), each time that it begins to lack;
  // the run goes on.
  void on_missing_events(std::function<void(const Status&)> sink);
  const Unlogged& unlogged() const { return unlogged_; }

  // After every step, skipped ones too. Returns the logged loss where the step was one to log
  // (logging_steps). It is the mean of the steps since the last one logged; with
  // logging_nan_inf_filter a step whose loss is not finite counts as transformers has it, with a
  // mean of those before it. steps.jsonl always has the step's own.
  Result<std::optional<double>> step(const StepRecord& record);
  // After an evaluation of the parameters as of the last step (0: the initial ones): a line in
  // trainer_log.jsonl, an entry in log_history. Keep the order log, evaluate, checkpoint.
  Status evaluated(const EvalResult& result);
  // What trainer_state.json says of the best model: after evaluated(), and before a checkpoint.
  void set_best(const BestModel& best);
  // Makes the lines durable, before a checkpoint that stands for them.
  Status sync();
  // trainer_state.json as of the last step.
  std::string trainer_state_text() const { return train::trainer_state_text(state_); }
  const TrainerState& state() const { return state_; }

  // train_results.json, all_results.json, trainer_state.json; eval_results.json where `final_step`
  // was evaluated (the last step, or the one whose parameters load_best_model_at_end brought back);
  // with plot_loss, the plots. A run that had nothing left to train leaves the results of the one
  // that it goes on from as they are.
  Status finish(std::int64_t final_step);
  Status finish() { return finish(state_.global_step); }

 private:
  RunRecorder(FileSystem& files, const Clock& clock, const TrainConfig& config,
              const RunFacts& facts, TrainerState state, std::int64_t kept_step);
  void go_on_from(const RecorderPosition& position);
  Status remember_unlogged_steps();
  void add_loss(double loss);
  void add_history(json::Object entry);
  // The event file is for people: what fails there costs the run nothing, and is tried again with
  // the next entry.
  void show(const json::Object& entry);
  void open_events();
  Status save_evaluation(std::int64_t final_step);
  bool logging_due(std::int64_t step) const;
  // The files tell how the very run ended that this one goes on from, and nothing was added to it.
  bool is_told_already() const;
  Status save_training();
  double elapsed_s() const;
  double remaining_s() const;

  FileSystem* files_;
  const Clock* clock_;
  const TrainConfig* config_;
  RunFacts facts_;
  TrainerState state_;
  std::optional<LineFile> steps_;
  std::optional<LineFile> log_;
  std::optional<TensorBoardFile> events_;
  Status events_missing_;
  std::function<void(const Status&)> on_missing_events_;
  Unlogged unlogged_;
  std::function<void(const json::Object&)> on_history_;
};

}  // namespace troupe::train

#pragma once
// What rank 0 writes about a run while it trains: steps.jsonl, trainer_log.jsonl, the log history
// of trainer_state.json, and the results at the end.

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/file_system.h"
#include "runtime/base/log.h"
#include "train/config/derived.h"
#include "train/config/train_config.h"
#include "train/report/step_log.h"
#include "train/report/trainer_state.h"

namespace troupe::train {

// Facts of a run that its reports need.
struct RunFacts {
  RunSchedule schedule;
  double flos_per_token = 0;
  std::int64_t dataset_tokens = 0;
  int world_size = 1;
  std::int64_t started_unix_us = 0;  // of the run, not of this process
};

class RunRecorder {
 public:
  // Opens the files with what belongs to steps up to `state.global_step`; later lines are dropped.
  static Result<RunRecorder> open(FileSystem& files, const Clock& clock, const TrainConfig& config,
                                  const RunFacts& facts, TrainerState state);

  // After every step. Returns whether the step was one to log (logging_steps).
  Result<bool> step(const StepRecord& record);
  // Makes the lines durable, before a checkpoint that stands for them.
  Status sync();
  // trainer_state.json as of the last step.
  std::string trainer_state_text() const { return train::trainer_state_text(state_); }
  const TrainerState& state() const { return state_; }

  // train_results.json, all_results.json, trainer_state.json and, with plot_loss, the plot.
  Status finish();

 private:
  RunRecorder(FileSystem& files, const Clock& clock, const TrainConfig& config,
              const RunFacts& facts, TrainerState state, LineFile steps, LineFile log);
  double elapsed_s() const;

  FileSystem* files_;
  const Clock* clock_;
  const TrainConfig* config_;
  RunFacts facts_;
  TrainerState state_;
  LineFile steps_;
  LineFile log_;
  std::int64_t first_step_;
  double loss_since_log_ = 0;
  std::int64_t steps_since_log_ = 0;
};

}  // namespace troupe::train

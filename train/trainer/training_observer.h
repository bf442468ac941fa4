#pragma once
// What a rank's training loop tells, and asks, while it runs.

#include <cstdint>
#include <string>

#include "train/report/step_log.h"
#include "train/trainer/evaluator.h"
#include "train/trainer/run_state.h"

namespace troupe::train {

// The parameters and the optimizer state as of `step` are there.
struct LoadReport {
  std::int64_t step = 0;  // steps done
  LoadedFrom from = LoadedFrom::kInitial;
  // kMemory: this rank finished an optimizer phase that was left behind; `step` counts it.
  bool finished_step = false;
  // The step that had begun when the generation before was lost and begins again; 0: none.
  std::int64_t recomputes = 0;
  // Not kMemory after a failure: why memory was not enough.
  std::string reason;
};

// Called on the loop's thread.
class TrainingObserver {
 public:
  virtual ~TrainingObserver() = default;
  virtual void loaded(const LoadReport& report) = 0;
  // Every rank: its part of the step is done, with its times.
  virtual void step_done(const StepRecord& record) = 0;
  // Rank 0 only: the step is finished on all ranks. `logged`: it was one of logging_steps.
  virtual void step_finished(const StepRecord& record, bool logged) = 0;
  // Rank 0 only: the parameters after `step` were evaluated. `best`: better than all before.
  virtual void evaluated(const EvalResult& result, std::int64_t step, bool best) = 0;
  virtual void checkpoint_written(std::int64_t step, const std::string& path) = 0;
  // The checkpoint of `step` was being committed when a trainer died, and is not to be had.
  virtual void checkpoint_abandoned(std::int64_t step, const std::string& path) = 0;
  // For the user: a warning that does not end the run.
  virtual void warning(const std::string& text) = 0;
  // The loop leaves at the next step with kCancelled.
  virtual bool stop_requested() = 0;
  // Asked of rank 0 once a step: the loop writes a checkpoint after the step under way and leaves
  // with kCancelled "stopped at step N after saving".
  virtual bool save_and_stop_requested() = 0;
};

}  // namespace troupe::train

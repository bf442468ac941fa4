#pragma once
// What a rank's training loop tells, and asks, while it runs.

#include <cstdint>
#include <optional>
#include <string>

#include "train/report/step_log.h"
#include "train/trainer/evaluator.h"
#include "train/trainer/run_state.h"
#include "troupe/train/training_view.h"

namespace troupe::train {

// Called on the loop's thread.
class TrainingObserver {
 public:
  virtual ~TrainingObserver() = default;
  // The parameters and the optimizer state are there.
  virtual void loaded(const TrainerLoaded& loaded) = 0;
  // Every rank: its part of the step is done, with its times.
  virtual void step_done(const StepRecord& record) = 0;
  // Rank 0 only: the step is finished on all ranks. `logged_loss`: it was one of logging_steps,
  // and this is the loss that was logged.
  virtual void step_finished(const StepRecord& record, std::optional<double> logged_loss) = 0;
  // Rank 0 only: the parameters after `step` were evaluated. `best`: better than all before.
  virtual void evaluated(const EvalResult& result, std::int64_t step, bool best) = 0;
  // Rank 0 only: the checkpoint of `step`, after which the loop leaves, is begun.
  virtual void saving(std::int64_t step) = 0;
  virtual void checkpoint_written(std::int64_t step, const std::string& path) = 0;
  // It could not be written; training goes on, and the checkpoints before are as they were.
  virtual void checkpoint_failed(std::int64_t step, const Status& cause) = 0;
  // The checkpoint of `step` was being committed when a trainer died, and is not to be had.
  virtual void checkpoint_abandoned(std::int64_t step, const std::string& path) = 0;
  // Rank 0 only, for the user: what the run does that the configuration alone does not say.
  virtual void notice(const std::string& text) = 0;
  // Machines may come and go while the run goes on.
  virtual bool world_changes() const { return false; }
  // Rank 0 only: whether every state is on more than one machine from here on. What this process
  // was told before; nothing: it was not asked yet.
  virtual std::optional<bool> safe_before(bool /*safe*/) { return std::nullopt; }
  // Rank 0 only: the finished model could not be written to `folder`, and is kept in memory.
  virtual void model_held(const std::string& folder, const Status& cause) = 0;
  // Asked of rank 0 while it is: the folder that the user names for it; once.
  virtual std::optional<std::string> save_to() = 0;
  // Rank 0 only: it was written to another folder than output_dir.
  virtual void model_saved(const std::string& folder) = 0;
  // Every rank, before a step and behind the last one: the program's own work may be done now.
  virtual void between_steps(const TrainingView&) {}
  // Asked of rank 0 before a step: arguments that its data source is to have from that step on. The
  // same until data_wish_done(), which is told when a step with them stands, or why it cannot be.
  virtual std::optional<std::string> data_wish() { return std::nullopt; }
  virtual void data_wish_done(const std::string& /*arguments*/, const Status& /*outcome*/) {}
  // For the user: a warning that does not end the run.
  virtual void warning(const std::string& text) = 0;
  // The loop leaves at the next step with kCancelled.
  virtual bool stop_requested() = 0;
  // Asked of rank 0 once a step: the loop writes a checkpoint after the step under way and leaves
  // with saved_stop().
  virtual bool save_and_stop_requested() = 0;
  // The same: the loop leaves after the step under way with paused_after().
  virtual bool pause_requested() { return false; }
};

}  // namespace troupe::train

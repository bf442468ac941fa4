#pragma once
// New arguments of a program's own data source, on their way from a method of its trainer to the
// training loop, and the outcome on its way back.

#include <map>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "troupe/detail/mutex.h"
#include "troupe/train/training_view.h"

namespace troupe::train {

// kFailedPrecondition: what is told to those that wait for a step.
Status run_has_ended();

// Thread-safe.
class DataChanges {
 public:
  // Between two steps: asks the loop to go on with `arguments` (JSON). True: it does already.
  // kFailedPrecondition where this rank does not decide that, or nothing could follow of it.
  Result<bool> ask(const TrainingView& run, const std::string& arguments);
  // After ask(): until a step with them stands. kDeadlineExceeded.
  Status wait(const std::string& arguments, Deadline deadline);

  // The loop's (TrainingObserver): what was asked for, and what came of it.
  std::optional<std::string> asked() const;
  void done(const std::string& arguments, const Status& outcome);
  // No step follows in which what was asked for could be used.
  void run_ended();
  // Nobody waits any more.
  void end();

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::optional<std::string> asked_ TROUPE_GUARDED_BY(mutex_);
  std::map<std::string, Status> outcomes_ TROUPE_GUARDED_BY(mutex_);
  bool ended_ TROUPE_GUARDED_BY(mutex_) = false;
};

}  // namespace troupe::train

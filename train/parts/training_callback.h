#pragma once
// What a program is told of its training run, and how it may end it.
//
// Callbacks are called in the process of rank 0's trainer, on its loop's thread, between steps: all
// ranks wait meanwhile. Every rank constructs them, and the program that starts the run does once,
// to find mistakes in their arguments: what a callback opens, it opens when it is first called. The
// object is made anew where a process is: what it must remember, it takes from what it is told.
// After a kill the last step may be told again.

#include <cstdint>
#include <string>

#include "train/report/step_log.h"

namespace troupe::train {

enum class AfterStep {
  kGoOn,
  // The run ends behind this step as behind its last one: with a checkpoint where the run writes
  // any, and the finished model. All ranks know it before the next step; a kill changes nothing.
  kEndRun,
};

class TrainingCallback {
 public:
  virtual ~TrainingCallback() = default;
  // The samples of `step` are about to be taken.
  virtual void step_begun(std::int64_t /*step*/) {}
  // The step is done on all ranks. The answer is a function of `record`'s values and not of its
  // times, or runs that should be equal end differently.
  virtual AfterStep step_finished(const StepRecord& /*record*/) { return AfterStep::kGoOn; }
  // The checkpoint of `step` is complete.
  virtual void saved(std::int64_t /*step*/, const std::string& /*path*/) {}
};

}  // namespace troupe::train

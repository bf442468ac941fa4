#pragma once
// What a program is told of its training run by the run's rank 0, and how it may end it.
//
// Callbacks are called in the process of rank 0's trainer, on its loop's thread, between steps: all
// ranks wait meanwhile. Every rank constructs them, and the program that starts the run does once,
// to find mistakes in their arguments: what a callback opens, it opens when it is first called. The
// object is made anew where a process is: what it must remember, it takes from what it is told.
// After a kill the last step may be told again. What happens to ranks, the program that started the
// run is told (TrainingJob::on_event).

#include <cstdint>
#include <string>

namespace troupe::train {

// One optimizer step.
struct FinishedStep {
  std::int64_t step = 0;  // 1 for the first
  double loss = 0;        // mean over the step's labels, of all ranks; NaN where it was
  double grad_norm = 0;   // before clipping
  double learning_rate = 0;
  std::int64_t tokens = 0;  // of all ranks
  std::int64_t epoch = 0;
  std::string skipped;  // why the parameters were not updated; empty: they were
};

// An evaluation of the parameters after `step`.
struct FinishedEvaluation {
  std::int64_t step = 0;
  double loss = 0;
  std::int64_t samples = 0;
  bool best = false;     // better than all before, where the run keeps track
  std::string data_set;  // with eval_on_each_dataset its name: there is one for each; else empty
};

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
  virtual void step_begun(std::int64_t step) { (void)step; }
  // The step is done on all ranks. The answer is a function of the step's values, or runs that
  // should be equal end differently.
  virtual AfterStep step_finished(const FinishedStep& step) {
    (void)step;
    return AfterStep::kGoOn;
  }
  virtual void evaluated(const FinishedEvaluation& evaluation) { (void)evaluation; }
  // The checkpoint of `step` is complete.
  virtual void saved(std::int64_t step, const std::string& path) { (void)step, (void)path; }
};

}  // namespace troupe::train

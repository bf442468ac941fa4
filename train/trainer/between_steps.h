#pragma once
// Work that other threads hand to a training loop, to be done between two steps.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "troupe/detail/mutex.h"
#include "troupe/train/training_view.h"

namespace troupe::train {

class BetweenSteps {
 public:
  using Work = std::function<void(const TrainingView&)>;

  // Waits until the loop has done it. kDeadlineExceeded: the loop did not come to it, and will not
  // do it any more. What end() was told: the loop has ended.
  Status run(Work work, Deadline deadline);
  // The loop's: does all that came, in its order.
  void do_all(const TrainingView& view);
  // The loop's, where it begins again: a run that ended on this rank may have another generation.
  void begin();
  // The loop's, at its end: nothing will be done until begin(), and whoever asks is told `why`.
  void end(Status why);

 private:
  enum class State { kWaits, kRuns, kDone };
  struct Item {
    Work work;
    State state = State::kWaits;
  };

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Item>> items_ TROUPE_GUARDED_BY(mutex_);
  Status ended_ TROUPE_GUARDED_BY(mutex_);  // ok: it has not
};

}  // namespace troupe::train

#include "train/trainer/between_steps.h"

#include <algorithm>
#include <utility>

namespace troupe::train {

Status BetweenSteps::run(Work work, Deadline deadline) {
  auto item = std::make_shared<Item>();
  item->work = std::move(work);
  MutexLock lock(mutex_);
  if (!ended_.ok()) return ended_;
  items_.push_back(item);
  const auto begun = [&]() TROUPE_NO_ANALYSIS {
    return !ended_.ok() || item->state != State::kWaits;
  };
  changed_.wait_until(mutex_, deadline, begun);
  if (item->state == State::kWaits) {
    std::erase(items_, item);
    if (!ended_.ok()) return ended_;
    return error(Code::kDeadlineExceeded,
                 "the training did not come to the end of a step within the call's time: it may be "
                 "starting, recovering, evaluating, or have ended");
  }
  // It uses what belongs to the caller: whoever waits for it waits until it is done.
  const auto done = [&]() TROUPE_NO_ANALYSIS { return item->state == State::kDone; };
  while (!done()) changed_.wait_until(mutex_, Deadline::after(std::chrono::seconds(5)), done);
  return {};
}

void BetweenSteps::do_all(const TrainingView& view) {
  for (;;) {
    std::shared_ptr<Item> item;
    {
      MutexLock lock(mutex_);
      if (items_.empty()) return;
      item = std::move(items_.front());
      items_.pop_front();
      item->state = State::kRuns;
    }
    item->work(view);
    MutexLock lock(mutex_);
    item->state = State::kDone;
    changed_.notify_all();
  }
}

void BetweenSteps::begin() {
  MutexLock lock(mutex_);
  ended_ = {};
}

void BetweenSteps::end(Status why) {
  MutexLock lock(mutex_);
  ended_ = std::move(why);
  changed_.notify_all();
}

}  // namespace troupe::train

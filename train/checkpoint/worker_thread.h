#pragma once
// One thread that does tasks one after the other. Private to this folder.

#include <deque>
#include <functional>
#include <thread>

#include "runtime/base/clock.h"
#include "troupe/detail/mutex.h"

namespace troupe::train {

class WorkerThread {
 public:
  WorkerThread();
  // Does what is posted, then ends.
  ~WorkerThread();

  void post(std::function<void()> task);
  // Waits until nothing is posted and nothing runs; false where the deadline came first.
  bool wait_idle(Deadline deadline);

 private:
  void run();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ TROUPE_GUARDED_BY(mutex_);
  bool busy_ TROUPE_GUARDED_BY(mutex_) = false;
  bool ending_ TROUPE_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: uses all of the above
};

}  // namespace troupe::train

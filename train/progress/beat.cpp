#include "train/progress/beat.h"

#include <time.h>

#include "runtime/base/build_options.h"
#include "runtime/base/clock.h"

namespace troupe::train {

Beat::Beat(ProgressRecord& record) : record_(record) {
  if constexpr (kRecovery) thread_ = std::thread([this] { run(); });
}

Beat::~Beat() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
  }
  ended_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Beat::bump() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  record_.cpu_ns.store(used.tv_sec * 1'000'000'000 + used.tv_nsec, std::memory_order_relaxed);
  record_.beat_at_ns.store(SystemClock().now().time_since_epoch().count(),
                           std::memory_order_relaxed);
  record_.beats.fetch_add(1, std::memory_order_release);
}

void Beat::run() {
  MutexLock lock(mutex_);
  while (!ending_) {
    bump();
    ended_.wait_until(mutex_, Deadline::after(kBeatInterval), [this] { return ending_; });
  }
}

}  // namespace troupe::train

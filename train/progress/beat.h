#pragma once
// A thread that does nothing but show that its process runs.

#include <thread>

#include "train/progress/progress_record.h"
#include "troupe/detail/mutex.h"

namespace troupe::train {

inline constexpr Duration kBeatInterval = std::chrono::milliseconds(100);

// Bumps `beats` every 100 ms while it lives, and writes when that was and how much processor time
// the process has had: a stopped process has no beats, one that hangs beats without using any.
class Beat {
 public:
  // `record` outlives it.
  explicit Beat(ProgressRecord& record);
  ~Beat();  // at once
  Beat(const Beat&) = delete;
  Beat& operator=(const Beat&) = delete;

 private:
  void run();
  void bump();

  ProgressRecord& record_;
  Mutex mutex_;
  CondVar ended_;
  bool ending_ TROUPE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace troupe::train

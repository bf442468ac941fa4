#pragma once
// A mutex, its lock and its condition variable with Clang's thread-safety annotations:
//
//   Mutex mutex_;
//   std::deque<Call> calls_ TROUPE_GUARDED_BY(mutex_);

#include <condition_variable>
#include <mutex>

#include "troupe/clock.h"

#if defined(__clang__)
#define TROUPE_ANNOTATION(x) __attribute__((x))
#else
#define TROUPE_ANNOTATION(x)
#endif
#define TROUPE_GUARDED_BY(m) TROUPE_ANNOTATION(guarded_by(m))
#define TROUPE_REQUIRES(...) TROUPE_ANNOTATION(requires_capability(__VA_ARGS__))
#define TROUPE_EXCLUDES(...) TROUPE_ANNOTATION(locks_excluded(__VA_ARGS__))
#define TROUPE_NO_ANALYSIS TROUPE_ANNOTATION(no_thread_safety_analysis)

namespace troupe {

class TROUPE_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() TROUPE_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void unlock() TROUPE_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class TROUPE_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TROUPE_ANNOTATION(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() TROUPE_ANNOTATION(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Every wait has a deadline; there is no wait without one.
class CondVar {
 public:
  // Waits, with `mutex` held on entry and on return, until `ready()` or the deadline. Returns
  // ready().
  template <typename Ready>
  bool wait_until(Mutex& mutex, Deadline deadline, Ready ready)
      TROUPE_REQUIRES(mutex) TROUPE_NO_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool result = condition_.wait_until(lock, deadline.time(), std::move(ready));
    lock.release();
    return result;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace troupe

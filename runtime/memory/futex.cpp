#include "runtime/memory/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace troupe::memory {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

FutexWait futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration timeout) {
  if (word.load(std::memory_order_acquire) != expected) return FutexWait::kWoken;
  if (timeout <= Duration::zero()) return FutexWait::kTimedOut;
  timespec time{};
  time.tv_sec = timeout.count() / 1'000'000'000;
  time.tv_nsec = timeout.count() % 1'000'000'000;
  const long rc = ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT,
                            expected, &time, nullptr, 0);
  return rc == -1 && errno == ETIMEDOUT ? FutexWait::kTimedOut : FutexWait::kWoken;
}

void futex_wake(std::atomic<std::uint32_t>& word, int count) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, count, nullptr, nullptr,
            0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) { futex_wake(word, INT_MAX); }

}  // namespace troupe::memory

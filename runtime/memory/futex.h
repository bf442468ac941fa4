#pragma once
// Futexes in shared memory: sleeping until a 32-bit word changes, with a deadline on every wait.

#include <atomic>
#include <cstdint>

#include "runtime/base/clock.h"

namespace troupe::memory {

// What ended a wait. A wake may be spurious: look at the condition again.
enum class FutexWait { kWoken, kTimedOut };

// Sleeps while `word` holds `expected`, at most `timeout`. Works across processes that map the word
// (no FUTEX_PRIVATE). Returns kWoken at once where the word differs already.
FutexWait futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration timeout);

// Wakes up to `count` sleepers of `word` in any process. The word must have been changed before.
void futex_wake(std::atomic<std::uint32_t>& word, int count);
void futex_wake_all(std::atomic<std::uint32_t>& word);

}  // namespace troupe::memory

#pragma once
// Whether to look again and again before sleeping. Spinning pays where what is waited for comes
// from another core within microseconds; where it does not (a slow peer, a shared core), it only
// takes time from others. So it is tried as long as it succeeds, and ever more rarely when it does
// not.

#include <algorithm>
#include <cstdint>

#include "runtime/base/clock.h"

namespace troupe::memory {

// One for each waiter; one thread at a time.
class AdaptiveSpin {
 public:
  // Whether this wait may spin.
  bool worthwhile() {
    if (skip_ == 0) return true;
    --skip_;
    return false;
  }
  // What the spinning of a wait led to.
  void ended(bool found) {
    if (found) {
      failures_ = 0;
      penalty_ = 0;
    } else if (++failures_ >= kFailuresMax) {
      failures_ = kFailuresMax;
      penalty_ = std::min(std::max(penalty_ * 2, kPenaltyMin), kPenaltyMax);
      skip_ = penalty_;
    }
  }

 private:
  static constexpr std::uint32_t kFailuresMax = 4;
  // Waits without spinning after a failure.
  static constexpr std::uint32_t kPenaltyMin = 16;
  static constexpr std::uint32_t kPenaltyMax = 4096;
  std::uint32_t failures_ = 0;
  std::uint32_t penalty_ = 0;
  std::uint32_t skip_ = 0;
};

// Tells the core that this is a loop that waits.
inline void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Looks for `found()` for at most `budget`. The last value of found().
template <typename Found>
bool spin_until(Duration budget, const Clock& clock, Found found) {
  const TimePoint end = clock.now() + budget;
  do {
    for (int i = 0; i < 32; ++i) {
      if (found()) return true;
      spin_pause();
    }
  } while (clock.now() < end);
  return found();
}

}  // namespace troupe::memory

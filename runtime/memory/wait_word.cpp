#include "runtime/memory/wait_word.h"

#include "runtime/memory/futex.h"

namespace troupe::memory {

void Sleeper::sleep(Duration timeout) {
  (void)futex_wait(*word_, value(WaitState::kAsleep), timeout);
}

bool Waker::wake_slowly(std::uint32_t seen) {
  const std::uint32_t epoch = seen >> 2;
  if (epoch == epoch_) return false;
  const auto state = static_cast<WaitState>(seen & 3);
  if (state == WaitState::kEventFd) {
    epoch_ = epoch;
    return true;
  }
  if (state == WaitState::kAsleep) {
    // Where another was faster, or the consumer awoke, there is nothing to change; it may still be
    // on its way into the futex, which then finds another value.
    (void)word_->compare_exchange_strong(
        seen, epoch << 2 | static_cast<std::uint32_t>(WaitState::kWoken));
  }
  futex_wake(*word_, 1);
  epoch_ = epoch;
  return false;
}

}  // namespace troupe::memory

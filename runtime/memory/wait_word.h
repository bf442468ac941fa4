#pragma once
// How the one consumer of something in shared memory waits, and how its producers wake it without a
// system call where it does not sleep.
//
// The word holds an epoch and the consumer's state. The consumer announces that it goes to sleep
// (or that it does something else and wants its eventfd written), then looks for work once more,
// then sleeps; a producer publishes (sequentially consistent), then looks at the word. One of the
// two sees the other. A producer that is killed between any two instructions takes no one else's
// wake-up with it: every other one wakes the sleeper itself, once in each epoch.

#include <atomic>
#include <cstdint>

#include "runtime/base/clock.h"

namespace troupe::memory {

enum class WaitState : std::uint32_t {
  kAwake = 0,    // looks for itself
  kAsleep = 1,   // in a futex wait on the word, or about to be
  kEventFd = 2,  // does something else: write to its eventfd
  kWoken = 3,    // was asleep; a producer has woken it, or was killed while it did
};

// The consumer's side; one thread at a time. Zeroed memory is an awake consumer.
class Sleeper {
 public:
  explicit Sleeper(std::atomic<std::uint32_t>* word) : word_(word) {}
  void awake() { store(WaitState::kAwake); }
  // From now on producers act; look for work once more afterwards.
  void announce(WaitState state) {
    ++epoch_;
    store(state);
  }
  // After announce(kAsleep): until a producer wakes it, at most `timeout`. May be spurious.
  void sleep(Duration timeout);

 private:
  std::uint32_t value(WaitState state) const {
    return epoch_ << 2 | static_cast<std::uint32_t>(state);
  }
  void store(WaitState state) { word_->store(value(state), std::memory_order_seq_cst); }

  std::atomic<std::uint32_t>* word_;
  std::uint32_t epoch_ = 0;  // what others write into the word does not count
};

// A producer's side; one thread at a time, any number of them for one word.
class Waker {
 public:
  Waker() = default;
  explicit Waker(std::atomic<std::uint32_t>* word) : word_(word) {}
  // After publishing. True where the consumer wants its eventfd written, once in each epoch.
  bool wake() {
    const std::uint32_t seen = word_->load(std::memory_order_seq_cst);
    if ((seen & 3) == static_cast<std::uint32_t>(WaitState::kAwake)) return false;
    return wake_slowly(seen);
  }

 private:
  bool wake_slowly(std::uint32_t seen);

  std::atomic<std::uint32_t>* word_ = nullptr;
  std::uint32_t epoch_ = ~0u;  // the last in which this producer did its part
};

}  // namespace troupe::memory

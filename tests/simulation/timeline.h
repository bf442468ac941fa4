#pragma once
// Virtual time: what happens next, one thing at a time.

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"

namespace troupe::simulation {

class Timeline {
 public:
  TimePoint now() const { return now_; }
  std::uint64_t events() const { return events_; }

  // Things due at the same time happen in the order in which they were asked for.
  void after(Duration delay, std::function<void()> what) {
    entries_.push({now_ + std::max(delay, Duration::zero()), number_++, std::move(what)});
  }
  // False: nothing is to come.
  bool step() {
    if (entries_.empty()) return false;
    // The queue gives no way to move out of it.
    const std::function<void()> what = std::move(const_cast<Entry&>(entries_.top()).what);
    now_ = entries_.top().at;
    entries_.pop();
    ++events_;
    what();
    return true;
  }

  // Forgets what is to come, and what comes of that.
  void clear() {
    while (!entries_.empty()) std::exchange(entries_, {});
  }

 private:
  struct Entry {
    TimePoint at;
    std::uint64_t number;
    std::function<void()> what;
    bool operator<(const Entry& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };
  TimePoint now_{std::chrono::hours(1)};
  std::uint64_t number_ = 0;
  std::uint64_t events_ = 0;
  std::priority_queue<Entry> entries_;
};

}  // namespace troupe::simulation

#pragma once
// Durations, times and deadlines; and time as an interface, so that the same code runs in virtual
// time.

#include <cstdint>

#include "troupe/detail/durations.h"

namespace troupe {

using Duration = std::chrono::nanoseconds;
// Monotonic time. Its zero is the clock's own: compare and subtract only times of one clock.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic; safe from any thread.
  virtual TimePoint now() const = 0;
  // Microseconds since 1970 (UTC), for logs and files. May jump.
  virtual std::int64_t unix_time_us() const = 0;
};

// When a wait ends. Every blocking call in Troupe takes one.
class Deadline {
 public:
  static Deadline at(TimePoint time) { return Deadline(time); }
  // One beyond the end of the clock (Duration::max()) never passes.
  static Deadline after(Duration duration, const Clock& clock) {
    const TimePoint now = clock.now();
    const Duration left = TimePoint::max() - now;
    return Deadline(duration < left ? now + duration : TimePoint::max());
  }
  // On the system clock, for code outside the simulator.
  static Deadline after(Duration duration);
  TimePoint time() const { return time_; }
  // What is left at `now`, never negative.
  Duration remaining(TimePoint now) const { return time_ > now ? time_ - now : Duration::zero(); }
  Duration remaining() const;  // on the system clock
  bool passed(TimePoint now) const { return now >= time_; }
  bool passed() const;  // on the system clock

 private:
  explicit Deadline(TimePoint time) : time_(time) {}
  TimePoint time_;
};

}  // namespace troupe

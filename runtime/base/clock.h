#pragma once
// Time as an interface: nothing but SystemClock reads the machine's clocks, so that tests and the
// simulator can run the same code in virtual time.

#include <chrono>
#include <cstdint>
#include <string>

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

class SystemClock final : public Clock {
 public:
  TimePoint now() const override;
  std::int64_t unix_time_us() const override;
};

// A clock that stands until it is moved. Not thread-safe while being moved.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  std::int64_t unix_time_us() const override { return unix_time_us_; }
  void advance(Duration by);

 private:
  TimePoint now_{};
  std::int64_t unix_time_us_ = 1'700'000'000'000'000;
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

// "2026-02-06T19:00:00.123456Z"
std::string format_unix_time_us(std::int64_t unix_time_us);

}  // namespace troupe

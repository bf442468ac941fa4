#pragma once
// troupe/clock.h, and the clocks: nothing but SystemClock reads the machine's, so that tests and
// the simulator can run the same code in virtual time.

#include <cstdint>
#include <string>

#include "troupe/clock.h"

namespace troupe {

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

// "2026-02-06T19:00:00.123456Z"
std::string format_unix_time_us(std::int64_t unix_time_us);

}  // namespace troupe

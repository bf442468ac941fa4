#include "runtime/base/clock.h"

#include <fmt/format.h>

#include <ctime>

namespace troupe {

TimePoint SystemClock::now() const {
  return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
}

std::int64_t SystemClock::unix_time_us() const {
  using std::chrono::duration_cast;
  return duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void ManualClock::advance(Duration by) {
  now_ += by;
  unix_time_us_ += std::chrono::duration_cast<std::chrono::microseconds>(by).count();
}

Deadline Deadline::after(Duration duration) { return after(duration, SystemClock()); }
Duration Deadline::remaining() const { return remaining(SystemClock().now()); }
bool Deadline::passed() const { return passed(SystemClock().now()); }

std::string format_unix_time_us(std::int64_t unix_time_us) {
  const std::time_t seconds = unix_time_us / 1'000'000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                     unix_time_us % 1'000'000);
}

}  // namespace troupe

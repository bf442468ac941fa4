#include "scheduler/policy/output_limit.h"

#include <fmt/format.h>

#include <utility>

namespace troupe::scheduler {
namespace {

constexpr Duration kOutputWindow = std::chrono::seconds(1);

}  // namespace

bool OutputLimiter::admit(std::size_t bytes, TimePoint now) {
  if (!window_ || now >= *window_ + kOutputWindow) {
    window_ = now;
    lines_ = bytes_ = 0;
    closed_ = false;
  }
  // The first one passes, however long it is.
  const bool fits =
      lines_ == 0 || ((limits_.lines_per_s == 0 || lines_ < limits_.lines_per_s) &&
                      (limits_.bytes_per_s == 0 || bytes_ + bytes <= limits_.bytes_per_s));
  closed_ = closed_ || !fits;
  if (closed_) {
    left_out_.lines += 1;
    left_out_.bytes += bytes;
    return false;
  }
  lines_ += 1;
  bytes_ += bytes;
  return true;
}

std::optional<TimePoint> OutputLimiter::end_of_window() const {
  if (left_out_.lines == 0) return std::nullopt;
  return *window_ + kOutputWindow;
}

OutputLimiter::LeftOut OutputLimiter::take_left_out() { return std::exchange(left_out_, {}); }

std::string left_out_sentence(const OutputLimiter::LeftOut& left_out, const std::string& whose) {
  return fmt::format(
      "... {} line{} ({:.1f} KiB) left out: it writes faster than is passed on; its node keeps the "
      "last ones: troupe logs {}",
      left_out.lines, left_out.lines == 1 ? "" : "s", static_cast<double>(left_out.bytes) / 1024,
      whose);
}

}  // namespace troupe::scheduler

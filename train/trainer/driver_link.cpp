#include "train/trainer/driver_link.h"

#include <chrono>

#include "runtime/base/clock.h"
#include "train/report/format.h"

namespace troupe::train {
namespace {

// A driver that does not read its progress for so long is as good as gone.
constexpr auto kLastLineTimeout = std::chrono::seconds(5);
// About half an hour of steps of a fast run.
constexpr std::size_t kUnsentMax = std::size_t{8} << 20;

// Losses may be NaN, which JSON alone cannot say.
std::string as_line(const json::Object& line) { return python_json(line) + "\n"; }

}  // namespace

void DriverLink::connect(ByteStream stream, const json::Object& first) {
  drop();
  stream_ = std::move(stream);
  if (!first.empty()) unsent_.insert(0, as_line(first));
  flush();
}

void DriverLink::send(const json::Object& line) {
  unsent_ += as_line(line);
  if (unsent_.size() > kUnsentMax) {
    // A line that is half sent stays.
    const std::size_t from = sent_ == 0 ? 0 : unsent_.find('\n') + 1;
    unsent_.erase(from, unsent_.find('\n', unsent_.size() / 2) + 1 - from);
  }
  flush();
}

void DriverLink::flush() {
  while (stream_.valid() && sent_ < unsent_.size()) {
    const StreamIo io = stream_.write(std::as_bytes(std::span(unsent_).subspan(sent_)));
    if (io.state != StreamIo::State::kOpen) return drop();
    if (io.count == 0) break;
    sent_ += io.count;
  }
  // What was sent of whole lines is done with.
  const auto end = sent_ == 0 ? std::string::npos : unsent_.rfind('\n', sent_ - 1);
  if (end == std::string::npos) return;
  unsent_.erase(0, end + 1);
  sent_ -= end + 1;
}

void DriverLink::flush_at_end() {
  if (!stream_.valid() || (sent_ >= unsent_.size() && !stream_.unsent())) return;
  const Status sent = send_all(stream_, std::as_bytes(std::span(unsent_).subspan(sent_)),
                               Deadline::after(kLastLineTimeout));
  if (!sent.ok()) return drop();
  unsent_.clear();
  sent_ = 0;
}

void DriverLink::drop() {
  stream_.reset();
  sent_ = 0;  // the next connection gets the line from its beginning
}

}  // namespace troupe::train

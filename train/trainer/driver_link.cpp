#include "train/trainer/driver_link.h"

#include <sys/socket.h>

#include <cerrno>
#include <chrono>

#include "runtime/base/clock.h"
#include "runtime/memory/unix_socket.h"
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

void DriverLink::connect(UniqueFd socket, const json::Object& first) {
  drop();
  socket_ = std::move(socket);
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
  while (socket_.valid() && sent_ < unsent_.size()) {
    const auto n = ::send(socket_.get(), unsent_.data() + sent_, unsent_.size() - sent_,
                          MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n <= 0) return drop();
    sent_ += static_cast<std::size_t>(n);
  }
  // What was sent of whole lines is done with.
  const auto end = sent_ == 0 ? std::string::npos : unsent_.rfind('\n', sent_ - 1);
  if (end == std::string::npos) return;
  unsent_.erase(0, end + 1);
  sent_ -= end + 1;
}

void DriverLink::flush_at_end() {
  if (!socket_.valid() || sent_ >= unsent_.size()) return;
  const Status sent =
      memory::send_all(socket_.get(), std::as_bytes(std::span(unsent_).subspan(sent_)),
                       Deadline::after(kLastLineTimeout));
  if (!sent.ok()) return drop();
  unsent_.clear();
  sent_ = 0;
}

void DriverLink::drop() {
  socket_.reset();
  sent_ = 0;  // the next connection gets the line from its beginning
}

}  // namespace troupe::train

#include "runtime/process/output.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/file_system.h"

namespace troupe::process {
namespace {

using wire::LineEnd;

constexpr std::size_t kChunkBytes = 16u << 10;
// Reads at one wake-up, so that a child that writes without end does not keep the loop.
constexpr int kReadsPerWakeUp = 8;
// More than a pipe holds, however it was set up; a writer that goes on is not waited for.
constexpr int kReadsPerDrain = 128;
// How long a line waits for its end: a program that asks a question waits for the answer.
constexpr Duration kOpenLineDelay = std::chrono::milliseconds(50);

}  // namespace

Result<Pipe> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return errno_status(errno, "open", "a pipe");
  return Pipe{.reader = UniqueFd(fds[0]), .writer = UniqueFd(fds[1])};
}

void LogTail::append(std::string_view line) {
  line = line.substr(0, bytes_max_ > 0 ? bytes_max_ - 1 : 0);
  lines_.emplace_back(line);
  bytes_ += line.size() + 1;
  while (bytes_ > bytes_max_ && !lines_.empty()) {
    bytes_ -= lines_.front().size() + 1;
    lines_.pop_front();
  }
}

std::string LogTail::text(std::size_t bytes_max) const {
  std::size_t bytes = 0;
  auto first = lines_.end();
  while (first != lines_.begin()) {
    const std::size_t more = std::prev(first)->size() + 1;
    if (bytes + more > bytes_max) break;
    bytes += more;
    --first;
  }
  std::string result;
  result.reserve(bytes);
  for (auto line = first; line != lines_.end(); ++line) {
    result += *line;
    result += '\n';
  }
  return result;
}

// Shared with the loop's callback, since a handler may destroy the reader.
struct LineReader::State : std::enable_shared_from_this<State> {
  State(net::EventLoop& loop, UniqueFd fd, Handlers handlers, std::size_t line_bytes_max)
      : loop(loop),
        reader(std::move(fd)),
        handlers(std::move(handlers)),
        line_bytes_max(line_bytes_max) {}

  void read_some(int reads_max) {
    std::array<char, kChunkBytes> chunk;
    const auto self = shared_from_this();
    for (int i = 0; i < reads_max && reader.valid(); ++i) {
      const ssize_t count = ::read(reader.get(), chunk.data(), chunk.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (count <= 0) {
        end();
        return;
      }
      take(std::string_view(chunk.data(), static_cast<std::size_t>(count)));
    }
  }

  void take(std::string_view text) {
    while (!text.empty() && reader.valid()) {
      if (std::exchange(after_return, false)) {
        // A line that ends in "\r\n" keeps the carriage return.
        if (text.front() != '\n') {
          tell(LineEnd::kReturn);
          continue;
        }
        partial += '\r';
      }
      const std::size_t room = line_bytes_max - std::min(partial.size(), line_bytes_max);
      const std::size_t piece = std::min({text.find_first_of("\n\r"), text.size(), room});
      partial.append(text.substr(0, piece));
      text.remove_prefix(piece);
      if (text.empty()) break;
      if (text.front() == '\n' || text.front() == '\r') {
        after_return = text.front() == '\r';
        text.remove_prefix(1);
        if (!after_return) tell(LineEnd::kNewline);
      } else {
        tell(LineEnd::kNone);
      }
    }
    if (!reader.valid() || !waits_for_more() || std::exchange(timer_armed, true)) return;
    loop.call_after(kOpenLineDelay, [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->tell_open();
    });
  }

  // Whether there is something of a line that has no end, and that has not been told.
  bool waits_for_more() const { return after_return || partial.size() > shown; }

  void tell_open() {
    timer_armed = false;
    if (!reader.valid() || !waits_for_more()) return;
    if (std::exchange(after_return, false)) return tell(LineEnd::kReturn);
    handlers.on_line({partial, LineEnd::kOpen, shown});
    shown = partial.size();
  }

  void tell(LineEnd end) {
    const std::string complete = std::exchange(partial, {});
    handlers.on_line({complete, end, std::exchange(shown, 0)});
  }

  // Tells a line that was begun: nothing will be added to it.
  void tell_rest() {
    if (std::exchange(after_return, false)) return tell(LineEnd::kReturn);
    if (!partial.empty()) tell(LineEnd::kNone);
  }

  void end() {
    close();
    tell_rest();
    if (handlers.on_end) handlers.on_end();
  }

  void close() {
    if (!reader.valid()) return;
    loop.unwatch(reader.get());
    reader.reset();
  }

  net::EventLoop& loop;
  UniqueFd reader;
  const Handlers handlers;
  const std::size_t line_bytes_max;
  std::string partial;
  bool after_return = false;  // a carriage return came behind `partial`
  std::size_t shown = 0;      // of `partial`: told as kOpen
  bool timer_armed = false;
};

LineReader::LineReader(net::EventLoop& loop, UniqueFd reader, Handlers handlers,
                       std::size_t line_bytes_max)
    : state_(
          std::make_shared<State>(loop, std::move(reader), std::move(handlers), line_bytes_max)) {
  TROUPE_CHECK(line_bytes_max > 0);
  const int fd = state_->reader.get();
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  loop.watch_readable(fd, [state = state_] { state->read_some(kReadsPerWakeUp); });
}

LineReader::~LineReader() { state_->close(); }

void LineReader::read_now() {
  const auto state = state_;
  state->read_some(kReadsPerDrain);
}

void LineReader::drain() {
  const auto state = state_;
  state->read_some(kReadsPerDrain);
  state->tell_rest();
}

}  // namespace troupe::process

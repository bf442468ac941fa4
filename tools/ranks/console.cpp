#include "tools/ranks/console.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "runtime/base/signal_block.h"

namespace troupe::tools {
namespace {

// A descriptor that is ready takes as much as PIPE_BUF without waiting.
constexpr std::size_t kChunkBytes = 4096;
constexpr int kPollMs = 100;

}  // namespace

Console::Console(Streams streams, std::size_t bytes_max, Duration hurried_drain)
    : streams_(streams), bytes_max_(bytes_max), hurried_drain_(hurried_drain) {
  const SignalBlock block;
  thread_ = std::thread([this] { run(); });
}

Console::~Console() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int Console::Buffer::overflow(int_type c) {
  if (c != traits_type::eof()) text_ += traits_type::to_char_type(c);
  return traits_type::not_eof(c);
}

std::streamsize Console::Buffer::xsputn(const char* text, std::streamsize count) {
  text_.append(text, static_cast<std::size_t>(count));
  return count;
}

int Console::Buffer::sync() {
  if (!text_.empty()) console_.write("", to_err_, std::exchange(text_, {}));
  return 0;
}

void Console::write(const std::string& source, bool to_err, std::string text) {
  const std::lock_guard lock(mutex_);
  if (waiting_bytes_ + text.size() > bytes_max_) {
    ++left_out_;
    return;
  }
  if (left_out_ > 0) {
    waiting_.push_back({"", true,
                        fmt::format("troupe run: ... {} lines left out: this console did not take "
                                    "them\n",
                                    std::exchange(left_out_, 0))});
  }
  waiting_bytes_ += text.size();
  waiting_.push_back({source, to_err, std::move(text)});
  changed_.notify_all();
}

void Console::hurry() {
  const std::lock_guard lock(mutex_);
  hurried_ = true;
  changed_.notify_all();
}

void Console::drain() {
  std::unique_lock lock(mutex_);
  const auto empty = [&] { return waiting_.empty() && !writing_; };
  changed_.wait(lock, [&] { return empty() || hurried_; });
  changed_.wait_for(lock, hurried_drain_, empty);
}

void Console::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
    if (ended_) return;
    const Text text = take();
    writing_ = true;
    lock.unlock();
    write_out(text);
    lock.lock();
    writing_ = false;
    waiting_bytes_ -= std::min(waiting_bytes_, text.text.size());
    changed_.notify_all();
  }
}

Console::Text Console::take() {
  Text text = std::move(waiting_.front());
  waiting_.pop_front();
  while (!waiting_.empty()) {
    const Text& next = waiting_.front();
    if (next.to_err != text.to_err || next.source != text.source ||
        text.text.size() + next.text.size() > kChunkBytes) {
      break;
    }
    text.text += next.text;
    waiting_.pop_front();
  }
  return text;
}

void Console::write_out(const Text& text) {
  if (text.text.empty()) return;
  const std::string stream = (text.to_err ? "err " : "out ") + text.source;
  // Not before a progress bar, which takes the place of the other one.
  const bool line = text.text.front() != '\r' && text.text.find('\n') != std::string::npos;
  if (line && !open_source_.empty() && open_source_ != stream &&
      (text.to_err || streams_.one_terminal)) {
    open_source_.clear();
    if (!put(true, "\n")) return;
  }
  if (!put(text.to_err, text.text)) return;
  if (text.to_err) open_source_ = text.text.back() == '\n' ? std::string() : stream;
}

bool Console::put(bool to_err, std::string_view text) {
  std::ostream& stream = to_err ? streams_.err : streams_.out;
  pollfd ready{.fd = to_err ? streams_.err_fd : streams_.out_fd, .events = POLLOUT, .revents = 0};
  while (!text.empty()) {
    while (ready.fd >= 0 && ::poll(&ready, 1, kPollMs) == 0) {
      const std::lock_guard lock(mutex_);
      if (ended_) return false;
    }
    const auto chunk = text.substr(0, kChunkBytes);
    stream << chunk << std::flush;
    text.remove_prefix(chunk.size());
  }
  return true;
}

}  // namespace troupe::tools

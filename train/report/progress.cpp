#include "train/report/progress.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <vector>

#include "runtime/base/suggest.h"
#include "train/report/format.h"

namespace troupe::train {
namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);
// Steps over which rates are taken: long enough to be calm, short enough to follow a change.
constexpr std::size_t kWindowSteps = 50;
constexpr int kBarColumnsMin = 10;
constexpr int kBarColumnsMax = 40;
constexpr int kBarFrameColumns = 4;  // brackets, and the space to the text
// Step, loss and time left: what a narrow terminal shows rather than a bar.
constexpr std::size_t kPartsBeforeBar = 3;
constexpr std::string_view kPartSeparator = "  ";
constexpr int kFallbackColumns = 80;
// How long a write waits for a reader at a time, and before the program's end.
constexpr int kPatienceMs = 1000;
constexpr int kLastPatienceMs = 100;
// "\r" to the line's start; "\x1b[K" clears to its end.
constexpr std::string_view kClearLine = "\r\x1b[K";

// "61 GFLOP/s (54 % of GEMM)"; empty without a measurement.
std::string describe_arithmetic(double gflops, double gemm_share, std::string_view of_what) {
  if (!(gflops > 0)) return {};
  std::string text = fmt::format("{:.{}f} GFLOP/s", gflops, gflops < 10 ? 1 : 0);
  if (gemm_share > 0) text += fmt::format(" ({:.0f} %{})", gemm_share * 100, of_what);
  return text;
}

// Of the first `count` parts, joined.
int columns_of(const std::vector<std::string>& parts, std::size_t count) {
  std::size_t columns = 0;
  for (std::size_t i = 0; i < count; ++i)
    columns += parts[i].size() + (i > 0 ? kPartSeparator.size() : 0);
  return static_cast<int>(columns);
}

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

bool StandardErrorOutput::is_terminal() const { return ::isatty(STDERR_FILENO) == 1; }

int StandardErrorOutput::width() const {
  struct winsize size {};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : kFallbackColumns;
}

bool StandardErrorOutput::writable() const {
  pollfd entry{STDERR_FILENO, POLLOUT, 0};
  return ::poll(&entry, 1, 0) > 0;
}

void StandardErrorOutput::write(std::string_view text) {
  while (!text.empty()) {
    pollfd entries[2] = {{STDERR_FILENO, POLLOUT, 0},
                         {hurries_ ? -1 : hurry_fd_.load(), POLLIN, 0}};
    const int patience_ms = nobody_reads_ ? 0 : hurries_ ? kLastPatienceMs : kPatienceMs;
    const int ready = ::poll(entries, 2, patience_ms);
    if (ready < 0 && errno != EINTR) return;
    if (ready > 0 && entries[1].revents != 0) hurries_ = true;
    if (ready <= 0 || entries[0].revents == 0) {
      if (!hurries_) continue;
      nobody_reads_ = true;
      return;
    }
    // So many bytes do not block where a pipe is writable.
    const ssize_t n =
        ::write(STDERR_FILENO, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // nobody listens: progress is no reason to fail
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

ProgressReporter::ProgressReporter(const Clock& clock, ProgressOutput& output,
                                   std::int64_t total_steps, std::int64_t first_step)
    : clock_(clock), output_(output), total_steps_(total_steps), start_(clock.now()) {
  last_.step = first_step;
  window_.push_back({start_, first_step, 0});
}

void ProgressReporter::update(const ProgressUpdate& update) {
  MutexLock lock(mutex_);
  if (finished_) return;
  const TimePoint now = clock_.now();
  if (update.step <= last_.step) {
    // Steps are repeated after a recovery: rates start anew.
    window_.clear();
  }
  tokens_ += update.tokens;
  last_ = update;
  logged_seconds_ += update.seconds;
  const double total = update.seconds.total();
  logged_work_.gflops += update.rates.gflops * total;
  logged_work_.gemm_share += update.rates.gemm_share * total;
  // Whoever made this with its first step had begun that earlier.
  if (window_.size() == 1) {
    const Duration step_time(static_cast<std::int64_t>(total * 1e9));
    window_.front().time = std::min(window_.front().time, now - step_time);
  }
  window_.push_back({now, update.step, tokens_});
  if (window_.size() > kWindowSteps + 1) window_.pop_front();
  if (!output_.is_terminal()) return;
  const bool due = !drawn_ || now - *drawn_ >= kRedrawInterval || update.step >= total_steps_;
  if (due) draw();
}

void ProgressReporter::log(std::optional<double> loss) {
  MutexLock lock(mutex_);
  if (!finished_ && !output_.is_terminal()) {
    if (!loss) loss = last_.loss;
    output_.write(plain_line(loss) + "\n");
  }
  logged_seconds_ = {};
  logged_work_ = {};
}

void ProgressReporter::message(std::string_view line) {
  MutexLock lock(mutex_);
  const bool redraw = drawn_ && !finished_ && output_.is_terminal();
  output_.write((redraw ? std::string(kClearLine) : std::string()) + std::string(line) + "\n");
  if (redraw) draw();
}

void ProgressReporter::finish() {
  MutexLock lock(mutex_);
  if (finished_) return;
  if (drawn_ && output_.is_terminal()) {
    draw();
    output_.write("\n");
  }
  finished_ = true;
}

double ProgressReporter::elapsed_s() const {
  MutexLock lock(mutex_);
  return elapsed_locked();
}
double ProgressReporter::remaining_s() const {
  MutexLock lock(mutex_);
  return remaining_locked();
}
double ProgressReporter::tokens_per_s() const {
  MutexLock lock(mutex_);
  return tokens_per_s_locked();
}

double ProgressReporter::elapsed_locked() const { return seconds(clock_.now() - start_); }

double ProgressReporter::remaining_locked() const {
  const auto steps = window_.back().step - window_.front().step;
  if (steps <= 0) return 0;
  const double per_step =
      seconds(window_.back().time - window_.front().time) / static_cast<double>(steps);
  return per_step * static_cast<double>(std::max<std::int64_t>(0, total_steps_ - last_.step));
}

double ProgressReporter::tokens_per_s_locked() const {
  const double time = seconds(window_.back().time - window_.front().time);
  if (!(time > 0)) return 0;
  return static_cast<double>(window_.back().tokens - window_.front().tokens) / time;
}

std::string ProgressReporter::bar(int width) const {
  std::vector<std::string> parts{fmt::format("{}/{}", last_.step, total_steps_)};
  if (last_.loss) parts.push_back("loss " + format_scientific(*last_.loss));
  if (window_.size() > 1) parts.push_back(format_duration(remaining_locked()) + " left");
  if (last_.learning_rate) parts.push_back("lr " + format_scientific(*last_.learning_rate));
  if (tokens_ > 0) parts.push_back(format_count(tokens_per_s_locked()) + " tokens/s");
  if (auto work = describe_arithmetic(last_.rates.gflops, last_.rates.gemm_share, "");
      !work.empty()) {
    parts.push_back(std::move(work));
  }
  parts.push_back(format_duration(elapsed_locked()));

  // The last column stays free: writing it would wrap on some terminals. What does not fit is left
  // out, the least important first: the bar is more important than all but the first parts, and
  // takes what room they leave.
  const int room = std::max(0, width - 1);
  const bool has_room = columns_of(parts, std::min(kPartsBeforeBar, parts.size())) <=
                        room - kBarColumnsMin - kBarFrameColumns;
  const bool has_bar = has_room && total_steps_ > 0;
  const int text_room = has_bar ? room - kBarColumnsMin - kBarFrameColumns : room;
  while (columns_of(parts, parts.size()) > text_room) parts.pop_back();
  const std::string text = join_words(parts, kPartSeparator);
  if (!has_bar) return text;
  const int cells =
      std::min(room - static_cast<int>(text.size()) - kBarFrameColumns, kBarColumnsMax);
  const double done =
      std::clamp(static_cast<double>(last_.step) / static_cast<double>(total_steps_), 0.0, 1.0);
  const auto filled = static_cast<std::size_t>(done * cells);
  std::string drawn(filled, '=');
  if (static_cast<int>(filled) < cells) drawn += '>';
  drawn.resize(static_cast<std::size_t>(cells), ' ');
  return "[" + drawn + "]  " + text;
}

std::string ProgressReporter::plain_line(std::optional<double> loss) const {
  std::string line = fmt::format("step {}/{}", last_.step, total_steps_);
  if (loss) line += fmt::format("  loss {}", format_scientific(*loss));
  if (last_.learning_rate) line += fmt::format("  lr {}", format_scientific(*last_.learning_rate));
  if (tokens_ > 0) line += fmt::format("  {} tokens/s", format_count(tokens_per_s_locked()));
  if (const double total = logged_seconds_.total(); total > 0) {
    const auto work = describe_arithmetic(logged_work_.gflops / total,
                                          logged_work_.gemm_share / total, " of GEMM");
    for (const auto& part : {work, describe_phases(logged_seconds_)}) {
      if (!part.empty()) line += "  " + part;
    }
  }
  return line + fmt::format("  {} left  {} elapsed", format_duration(remaining_locked()),
                            format_duration(elapsed_locked()));
}

void ProgressReporter::draw() {
  drawn_ = clock_.now();
  output_.write("\r" + bar(output_.width()) + "\x1b[K");
}

}  // namespace troupe::train

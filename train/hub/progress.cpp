#include "train/hub/progress.h"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::train::hub {
namespace {

constexpr Duration kOnTerminal = std::chrono::milliseconds(100);
constexpr Duration kInLog = std::chrono::seconds(10);

std::string mebibytes(double bytes) {
  const double mib = bytes / (1 << 20);
  return mib < 1024 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024);
}

}  // namespace

ProgressText::ProgressText(const Clock& clock, bool terminal,
                           std::function<void(const std::string&)> write)
    : clock_(clock), terminal_(terminal), write_(std::move(write)) {}

ProgressText::~ProgressText() { finish(); }

void ProgressText::finish() {
  const std::lock_guard lock(mutex_);
  if (width_ > 0) write_("\n");
  width_ = 0;
}

void ProgressText::begin(std::string_view, std::uint64_t missing_bytes) {
  const std::lock_guard lock(mutex_);
  if (files_++ == 0) began_ = shown_ = clock_.now();
  bytes_ += missing_bytes;
  show(false);
}

void ProgressText::received(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  received_ += bytes;
  came_ += bytes;
  show(false);
}

void ProgressText::lost(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
}

void ProgressText::end(std::string_view) {
  const std::lock_guard lock(mutex_);
  ++ended_;
  show(ended_ == files_);
}

void ProgressText::say(std::string_view line) {
  const std::lock_guard lock(mutex_);
  if (width_ > 0) write_("\n");
  width_ = 0;
  write_(std::string(line) + "\n");
}

void ProgressText::show(bool now) {
  const auto time = clock_.now();
  if (!now && time - shown_ < (terminal_ ? kOnTerminal : kInLog)) return;
  shown_ = time;
  const double seconds = std::chrono::duration<double>(time - began_).count();
  const double rate = seconds > 0 ? static_cast<double>(came_) / seconds : 0;
  std::string line = fmt::format("downloading: {} of {} files, {} of {}, {}/s", ended_, files_,
                                 mebibytes(static_cast<double>(received_)),
                                 mebibytes(static_cast<double>(bytes_)), mebibytes(rate));
  if (const auto left = static_cast<double>(bytes_ - std::min(bytes_, received_));
      left > 0 && rate > 0)
    line += fmt::format(", {:.0f} s left", left / rate);
  if (!terminal_) return write_(line + "\n");
  const std::size_t width = line.size();
  if (width < width_) line.append(width_ - width, ' ');
  width_ = width;
  write_("\r" + line);
}

}  // namespace troupe::train::hub

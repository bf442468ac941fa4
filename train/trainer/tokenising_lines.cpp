#include "train/trainer/tokenising_lines.h"

#include <algorithm>

#include "train/report/format.h"

namespace troupe::train {
namespace {

constexpr auto kLineInterval = std::chrono::seconds(5);
constexpr auto kBarInterval = std::chrono::milliseconds(100);
constexpr std::int64_t kBarColumns = 24;

std::string line_of(const SamplesMade& made, std::int64_t bytes_before, double seconds) {
  const auto bytes = static_cast<std::uint64_t>(made.text_bytes);
  std::string text =
      fmt::format("tokenising{}: {}", made.set == "train" ? "" : fmt::format(" ({})", made.set),
                  format_bytes(bytes));
  // Files may be compressed.
  if (made.file_bytes >= made.text_bytes)
    text += " of " + format_bytes(static_cast<std::uint64_t>(made.file_bytes));
  text += fmt::format("  {} rows  {} tokens", format_count(static_cast<double>(made.rows)),
                      format_count(static_cast<double>(made.tokens)));
  if (seconds > 0)
    text += fmt::format("  {}/s  {}",
                        format_bytes(static_cast<std::uint64_t>(
                            static_cast<double>(made.text_bytes - bytes_before) / seconds)),
                        format_duration(seconds));
  return text;
}

std::string bar_of(const SamplesMade& made) {
  if (made.file_bytes < made.text_bytes || made.file_bytes == 0) return {};
  const auto filled = std::min(kBarColumns - 1, kBarColumns * made.text_bytes / made.file_bytes);
  std::string bar(static_cast<std::size_t>(kBarColumns), ' ');
  std::fill_n(bar.begin(), filled, '=');
  bar[static_cast<std::size_t>(filled)] = '>';
  return "[" + bar + "]  ";
}

}  // namespace

void TokenisingLines::end_set() {
  // What took no time is not told: its samples are.
  if (std::exchange(written_, true) || !std::exchange(told_, false)) return;
  output_.write(output_.is_terminal() ? "\r\x1b[K" + last_ + "\n" : last_ + "\n");
}

void TokenisingLines::show(const SamplesMade& made) {
  MutexLock lock(mutex_);
  const TimePoint now = clock_.now();
  if (set_ != made.set) {
    end_set();
    told_ = false;
    set_ = made.set;
    began_ = shown_ = now;
    bytes_before_ = made.text_bytes;
  }
  last_ = line_of(made, bytes_before_, std::chrono::duration<double>(now - began_).count());
  written_ = false;
  const bool draws = output_.is_terminal();
  if (now - shown_ < (draws ? Duration(kBarInterval) : Duration(kLineInterval))) return;
  shown_ = now;
  told_ = true;
  if (draws) {
    std::string line = bar_of(made) + last_;
    line.resize(std::min(line.size(), static_cast<std::size_t>(std::max(1, output_.width() - 1))));
    output_.write("\r\x1b[K" + line);
  } else {
    output_.write(last_ + "\n");
    written_ = true;
  }
}

void TokenisingLines::finish() {
  MutexLock lock(mutex_);
  end_set();
}

}  // namespace troupe::train

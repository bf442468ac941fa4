#include "tools/ranks/console_end.h"

namespace troupe::tools {
namespace {

// So many lines do not hide what stands above them.
constexpr std::size_t kLinesBehindMax = 5;

}  // namespace

void ConsoleEnd::show(const wire::OutputLine& line) {
  const bool goes_on = rank_ == line.actor_id;
  if (!goes_on) *this = ConsoleEnd();
  rank_ = line.actor_id;
  if (line.is_part() || line.notice) return;
  if (!line.error_stream) {
    ++lines_behind_;
    return;
  }
  lines_behind_ = 0;
  // What has come of the line before another rank wrote stands further up.
  error_bytes_ += line.text.size() - (goes_on ? 0 : line.shown_bytes) + 1;
}

bool ConsoleEnd::holds(const ActorId& rank, std::string_view lines) const {
  if (rank != rank_ || lines_behind_ > kLinesBehindMax) return false;
  // The first one of a chain of exceptions is the cause.
  const std::size_t traceback = lines.find("Traceback (most recent call last):\n");
  const bool all = error_bytes_ >= lines.size();
  return all || (traceback != lines.npos && lines.size() - traceback <= error_bytes_);
}

}  // namespace troupe::tools

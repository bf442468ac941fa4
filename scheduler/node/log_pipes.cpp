#include "scheduler/node/log_pipes.h"

#include <fmt/format.h>

#include <utility>

#include "scheduler/policy/program_kind.h"

namespace troupe::scheduler {

std::string output_label(const wire::ActorSpec& spec) {
  if (!spec.name.empty()) return spec.name;
  if (spec.rank >= 0) return fmt::format("{} rank {}", spec.type, spec.rank);
  return fmt::format("{} {}", spec.type, spec.actor_id.brief());
}

JobId output_job(const wire::ActorSpec& spec) {
  return is_job_program(spec) ? JobId() : spec.job_id;
}

ActorLog::ActorLog(net::EventLoop& loop, const wire::ActorSpec& spec, OutputLimits limits,
                   OutputListener listener, std::optional<OutputRing> ring)
    : loop_(loop),
      actor_id_(spec.actor_id),
      job_id_(output_job(spec)),
      label_(output_label(spec)),
      name_(spec.name.empty() ? spec.actor_id.brief() : spec.name),
      listener_(std::move(listener)),
      limiter_(limits),
      ring_(std::move(ring)) {}

Status ActorLog::add_file(FileSystem& files, const std::string& path,
                          std::optional<OutputStream> only) {
  const auto slash = path.rfind('/');
  if (slash != std::string::npos && slash > 0) {
    TROUPE_RETURN_IF_ERROR(files.create_directories(path.substr(0, slash)));
  }
  files_.push_back({TROUPE_TRY(files.open_append(path)), only});
  return {};
}

void ActorLog::keep(std::string_view line) {
  if (ring_) return ring_->append(line);
  tail_.append(line);
  ++lines_without_ring_;
}

void ActorLog::append(std::string_view line, OutputStream stream) {
  keep(line);
  std::string text(line);
  text += '\n';
  // A full disk must not end an actor: the file is given up, the lines in memory stay.
  std::erase_if(files_, [&](auto& file) {
    return (!file.only || *file.only == stream) && !file.file->append(std::string_view(text)).ok();
  });
  if (!listener_) return;
  const TimePoint now = loop_.clock().now();
  if (const auto end = limiter_.end_of_window(); end && *end <= now) tell_left_out();
  if (limiter_.admit(text.size(), now)) return tell(line, false, stream);
  left_out_last_ = line_count();
  if (std::exchange(timer_armed_, true)) return;
  loop_.call_after(*limiter_.end_of_window() - now, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->timer_armed_ = false;
    self->tell_left_out();
  });
}

void ActorLog::tell(std::string_view line, bool notice, OutputStream stream) {
  wire::OutputLine message;
  message.actor_id = actor_id_;
  message.label = label_;
  message.number = notice ? left_out_last_ : line_count();
  message.text = line;
  message.notice = notice;
  message.error_stream = stream == OutputStream::kError;
  listener_(message);
}

void ActorLog::tell_left_out() {
  const auto left_out = limiter_.take_left_out();
  if (left_out.lines > 0) tell(left_out_sentence(left_out, name_), true, OutputStream::kError);
}

void ActorLog::flush() {
  if (listener_) tell_left_out();
}

void ActorLog::begin_process(std::uint64_t generation) {
  if (line_count() > 0) keep(fmt::format("--- generation {} ---", generation));
  if (ring_) ring_->begin_process();
}

std::string ActorLog::text(std::size_t bytes_max) const {
  return ring_ ? ring_->text(bytes_max) : tail_.text(bytes_max);
}

std::string ActorLog::text_of_process(std::size_t bytes_max) const {
  return ring_ ? ring_->text_of_process(bytes_max) : tail_.text(bytes_max);
}

std::vector<wire::OutputLine> ActorLog::lines(std::size_t lines_max) const {
  const std::string kept = text();
  std::vector<std::string_view> found;
  for (std::string_view rest = kept; !rest.empty();) {
    const auto end = rest.find('\n');
    found.push_back(rest.substr(0, end));
    rest.remove_prefix(end + 1);
  }
  if (found.size() > lines_max) found.erase(found.begin(), found.end() - lines_max);
  std::vector<wire::OutputLine> lines;
  std::uint64_t number = line_count() - found.size();
  for (const std::string_view line : found) {
    lines.push_back({actor_id_, label_, ++number, std::string(line), false, false});
  }
  return lines;
}

}  // namespace troupe::scheduler

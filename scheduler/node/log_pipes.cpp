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

OutputListener whole_lines(OutputSink sink) {
  if (!sink) return {};
  return [sink = std::move(sink)](const wire::OutputLine& line) {
    if (!line.is_part()) sink(line.label, line.text);
  };
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
  files_.push_back({TROUPE_TRY(files.open_append(path)), path, only});
  return {};
}

void ActorLog::keep(std::string_view line) {
  if (ring_) return ring_->append(line);
  tail_.append(line);
  ++lines_without_ring_;
}

void ActorLog::append(const process::OutputPiece& piece, OutputStream stream) {
  wire::OutputLine line;
  line.actor_id = actor_id_;
  line.label = label_;
  line.text = piece.text;
  line.error_stream = stream == OutputStream::kError;
  line.end = piece.end;
  line.shown_bytes = static_cast<std::uint32_t>(piece.shown_bytes);
  if (!line.is_part()) keep(line.text);
  // A part's is that of the line to come.
  line.number = line_count() + (line.is_part() ? 1 : 0);
  write_files(line, stream);
  if (!listener_) return;
  const TimePoint now = loop_.clock().now();
  if (const auto end = limiter_.end_of_window(); end && *end <= now) tell_left_out();
  if (limiter_.admit(line.text.size() + 1, now)) return listener_(line);
  left_out_last_ = line_count();
  if (std::exchange(timer_armed_, true)) return;
  loop_.call_after(*limiter_.end_of_window() - now, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->timer_armed_ = false;
    self->tell_left_out();
  });
}

void ActorLog::write_files(const wire::OutputLine& line, OutputStream stream) {
  const std::string said = line.new_text();
  std::erase_if(files_, [&](auto& file) {
    if (file.only ? *file.only != stream : line.is_part()) return false;
    const Status written = file.file->append(file.only ? said : line.text + '\n');
    // A full disk must not end an actor: the file is given up, the lines in memory stay.
    if (!written.ok()) {
      tell_notice(line.number - 1, fmt::format("... what it writes is not in {} from here on: {}",
                                               file.path, written.message()));
    }
    return !written.ok();
  });
}

void ActorLog::tell_notice(std::uint64_t number, std::string text) {
  if (!listener_) return;
  wire::OutputLine notice;
  notice.actor_id = actor_id_;
  notice.label = label_;
  notice.number = number;
  notice.text = std::move(text);
  notice.notice = notice.error_stream = true;
  listener_(notice);
}

void ActorLog::tell_left_out() {
  const auto left_out = limiter_.take_left_out();
  if (left_out.lines > 0) tell_notice(left_out_last_, left_out_sentence(left_out, name_));
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
    wire::OutputLine& kept = lines.emplace_back();
    kept.actor_id = actor_id_;
    kept.label = label_;
    kept.number = ++number;
    kept.text = line;
  }
  return lines;
}

}  // namespace troupe::scheduler

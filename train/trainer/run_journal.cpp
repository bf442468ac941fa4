#include "train/trainer/run_journal.h"

#include <algorithm>

namespace troupe::train {

RunJournal::RunJournal(FileSystem& files, const Clock& clock, Logger log, std::string output_dir)
    : files_(files), clock_(clock), log_(std::move(log)), output_dir_(std::move(output_dir)) {}

Status RunJournal::open(bool anew) {
  const std::string path = join_path(output_dir_, kEventsFile);
  TROUPE_RETURN_IF_ERROR(files_.create_directories(output_dir_));
  if (anew && files_.exists(path)) TROUPE_RETURN_IF_ERROR(files_.remove(path));
  events_ = TROUPE_TRY(LineFile::open(files_, path));
  return {};
}

void RunJournal::record(const RunEvent& event, const std::string& text, Duration ago) {
  const auto ago_us = std::chrono::duration_cast<std::chrono::microseconds>(ago).count();
  const std::string line =
      event_line(event, clock_.unix_time_us() - std::max<std::int64_t>(0, ago_us));
  if (events_) {
    const Status written = events_->append(line);
    if (!written.ok()) log_.warning("events.jsonl: {}", written.to_string());
  }
  auto object = json::parse(line, kEventsFile);
  if (!object.ok()) return;
  json::Object told{{"kind", "event"}, {"text", text}};
  told["line"] = std::move(*object);
  driver_.send(told);
}

void RunJournal::finish(const json::Object& line) {
  if (events_) static_cast<void>(events_->sync());
  driver_.send(line);
  driver_.flush_at_end();
}

}  // namespace troupe::train

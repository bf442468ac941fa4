#include "train/report/story.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include "runtime/base/clock.h"
#include "runtime/base/sort_by.h"

namespace troupe::train {
namespace {

constexpr double kMicrosPerMilli = 1000;

// The events of one run: from its `start` to the next.
struct Chapter {
  std::vector<RunEvent> events;  // by time: some are written when more is known of them
  std::int64_t number = 0;       // of all
  std::int64_t count = 1;
};

// Beginnings of runs; events before the first `start` belong to a run of their own, which an
// older Troupe wrote.
std::vector<std::size_t> beginnings(std::span<const RunEvent> events) {
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (i == 0 || events[i].event == events::kStart) begins.push_back(i);
  }
  return begins;
}

Result<Chapter> chapter_of(const StorySources& sources) {
  const std::span<const RunEvent> events = sources.events.events;
  const auto begins = beginnings(events);
  if (begins.empty()) return Chapter{};  // it has not come to its first event
  const auto part = [&](std::size_t i) {
    const std::size_t end = i + 1 < begins.size() ? begins[i + 1] : events.size();
    Chapter chapter{{events.begin() + static_cast<std::ptrdiff_t>(begins[i]),
                     events.begin() + static_cast<std::ptrdiff_t>(end)},
                    static_cast<std::int64_t>(i),
                    std::ssize(begins)};
    std::stable_sort(
        chapter.events.begin() + 1, chapter.events.end(),
        [](const RunEvent& a, const RunEvent& b) { return a.unix_time_us < b.unix_time_us; });
    return chapter;
  };
  if (sources.run.empty()) return part(begins.size() - 1);
  bool named = false;
  for (std::size_t i = begins.size(); i-- > 0;) {
    if (events[begins[i]].run == sources.run) return part(i);
    named = named || !events[begins[i]].run.empty();
  }
  if (!named) return part(begins.size() - 1);
  return error(Code::kNotFound,
               "the events in {} are not those of {}: a later run with the same output_dir has "
               "begun them anew; 'troupe why {}' tells its story",
               sources.output_dir, sources.run, sources.output_dir);
}

// 40 of "out/checkpoint-40"; 0 where the name does not tell.
std::int64_t step_of_checkpoint(std::string_view path) {
  const auto dash = path.rfind('-');
  std::int64_t step = 0;
  if (dash != std::string_view::npos) {
    std::from_chars(path.data() + dash + 1, path.data() + path.size(), step);
  }
  return step;
}

bool is_incident(const RunEvent& event) {
  return event.event == events::kStraggler || event.event == events::kStruck ||
         event.event == events::kController || event.event == events::kCheckpointAbandoned ||
         event.event == events::kCheckpointFailed || event.event == events::kModelHeld ||
         event.event == events::kModelSaved || event.event == events::kResize ||
         (event.event == events::kDeath && event.rank < 0);
}

// Whether the injected fault shows in one of the recoveries.
bool shows_in(const std::vector<Recovery>& recoveries, const RunEvent& fault) {
  return std::ranges::any_of(recoveries, [&](const Recovery& recovery) {
    return std::ranges::any_of(recovery.causes, [&](const RunEvent& cause) {
      return cause.fault == fault.fault &&
             (fault.rank < 0 || cause.rank < 0 || cause.rank == fault.rank);
    });
  });
}

RunOutcome outcome_of_end(const Status& end) {
  if (end.ok()) return RunOutcome::kFinished;
  return end.code() == Code::kCancelled ? RunOutcome::kStopped : RunOutcome::kFailed;
}

void read_end(RunStory& story, const Chapter& chapter, const StorySources& sources) {
  const bool newest = chapter.number + 1 >= chapter.count;
  const auto end =
      std::ranges::find(chapter.events, std::string_view(events::kEnd),
                        [](const RunEvent& event) { return std::string_view(event.event); });
  if (end != chapter.events.end()) {
    const Code code = code_from_number(static_cast<int>(end->code.value_or(0)));
    if (code != Code::kOk) story.end = Status(code, end->cause);
    story.outcome = outcome_of_end(story.end);
    story.ended_unix_us = end->unix_time_us;
    story.last_step = std::max(story.last_step, end->step);
    if (!end->path.empty()) story.last_checkpoint = end->path;
  } else if (newest && sources.driver_end) {
    story.end = *sources.driver_end;
    story.outcome = outcome_of_end(story.end);
    story.ended_unix_us = sources.driver_ended_unix_us;
  } else if (newest && sources.driver == DriverState::kRuns) {
    story.outcome = RunOutcome::kRunning;
    story.ended_unix_us = sources.now_unix_us;
  } else {
    story.outcome = !newest || sources.driver == DriverState::kGone ? RunOutcome::kVanished
                                                                    : RunOutcome::kUnknown;
    if (!chapter.events.empty()) story.ended_unix_us = chapter.events.back().unix_time_us;
  }
}

void read_step_records(RunStory& story, std::span<const StepRecord> steps) {
  for (const StepRecord& record : steps) {
    if (record.step <= story.first_step) continue;
    if (!story.first_loss) story.first_loss = record.loss;
    story.last_loss = record.loss;
    story.last_step = std::max(story.last_step, record.step);
    if (!record.skipped.empty()) story.skipped.push_back(record);
  }
}

}  // namespace

std::string_view outcome_name(RunOutcome outcome) {
  switch (outcome) {
    case RunOutcome::kRunning:
      return "running";
    case RunOutcome::kFinished:
      return "finished";
    case RunOutcome::kStopped:
      return "stopped";
    case RunOutcome::kFailed:
      return "failed";
    case RunOutcome::kVanished:
      return "vanished";
    case RunOutcome::kUnknown:
      return "unknown";
  }
  return "unknown";
}

double RunStory::run_ms() const {
  if (began_unix_us <= 0 || ended_unix_us <= began_unix_us) return 0;
  return static_cast<double>(ended_unix_us - began_unix_us) / kMicrosPerMilli;
}

Result<RunStory> read_story(const StorySources& sources) {
  const Chapter chapter = TROUPE_TRY(chapter_of(sources));
  RunStory story;
  story.run = sources.run;
  story.output_dir = sources.output_dir;
  story.earlier_runs = chapter.number;
  story.later_runs = chapter.count - chapter.number - 1;
  story.driver_pid = sources.driver_pid;
  story.damaged = sources.events.damaged;
  story.began_unix_us = sources.driver_started_unix_us;
  if (!chapter.events.empty() && chapter.events.front().event == events::kStart) {
    const RunEvent& start = chapter.events.front();
    if (!start.run.empty()) story.run = start.run;
    story.world_size = start.world_size;
    story.total_steps = start.total_steps;
    story.first_step = start.step >= 0 ? start.step : step_of_checkpoint(start.path);
    story.resumed_from = start.path;
    story.began_unix_us = start.unix_time_us;
  }
  if (!story.total_steps && sources.total_steps > 0) story.total_steps = sources.total_steps;
  story.last_step = story.first_step;
  for (const auto& event : chapter.events) {
    if (event.total_steps) story.total_steps = event.total_steps;
    story.last_step = std::max(story.last_step, event.step);
  }
  if (story.later_runs == 0) {
    read_step_records(story, sources.steps);
    story.last_checkpoint = sources.newest_checkpoint;
  }
  read_end(story, chapter, sources);
  story.recoveries = recoveries_of(chapter.events);
  for (const auto& event : chapter.events) {
    if (is_incident(event) || (event.event == events::kFault && !shows_in(story.recoveries, event)))
      story.incidents.push_back(event);
    if (event.event != events::kNotice) continue;
    // What changes "from here on" says little without its place.
    const std::string told = event.cause.find(" from here on") == event.cause.npos
                                 ? event.cause
                                 : fmt::format("after step {}: {}", event.step, event.cause);
    // A step that is done again says it again.
    if (std::ranges::find(story.notices, told) == story.notices.end())
      story.notices.push_back(told);
  }
  // What it waited for last, unless something came of it.
  for (const auto& event : chapter.events) {
    if (event.event == events::kWaiting) story.waits_for = event.cause;
    if (event.event == events::kRespawn || event.event == events::kSpare ||
        event.event == events::kRecovered || event.event == events::kEnd)
      story.waits_for.clear();
  }
  if (!sources.steps.empty() && story.recoveries.empty()) story.waits_for.clear();
  story.summary = summarize(story.recoveries, story.run_ms());
  return story;
}

json::Object to_json(const RunStory& story) {
  json::Object object{{"run", story.run},
                      {"output_dir", story.output_dir},
                      {"outcome", outcome_name(story.outcome)},
                      {"step", story.last_step},
                      {"first_step", story.first_step}};
  if (story.world_size) object["world_size"] = *story.world_size;
  if (story.total_steps) object["total_steps"] = *story.total_steps;
  if (story.began_unix_us > 0) object["began"] = format_unix_time_us(story.began_unix_us);
  if (story.ended_unix_us > 0 && story.outcome != RunOutcome::kRunning) {
    object["ended"] = format_unix_time_us(story.ended_unix_us);
  }
  if (story.driver_pid > 0) object["pid"] = story.driver_pid;
  if (!story.end.ok()) {
    object["code"] = code_name(story.end.code());
    object["cause"] = story.end.message();
  }
  if (!story.resumed_from.empty()) object["resumed_from"] = story.resumed_from;
  if (!story.last_checkpoint.empty()) object["last_checkpoint"] = story.last_checkpoint;
  object["summary"] = to_json(story.summary);
  json::Array recoveries, incidents, skipped;
  for (const auto& recovery : story.recoveries) recoveries.push_back(to_json(recovery));
  for (const auto& event : story.incidents) {
    incidents.push_back(json::parse(event_line(event, event.unix_time_us), kEventsFile).value());
  }
  for (const auto& record : story.skipped) {
    skipped.push_back(json::Object{{"step", record.step}, {"why", record.skipped}});
  }
  object["recoveries"] = std::move(recoveries);
  object["incidents"] = std::move(incidents);
  object["notices"] = json::Array(story.notices.begin(), story.notices.end());
  object["skipped_steps"] = std::move(skipped);
  object["damaged_lines"] = std::ssize(story.damaged);
  object["story"] = tell(story);
  return object;
}

}  // namespace troupe::train

#pragma once
// What happened to a run, in words: when it began, what failed, when, of what, while doing what,
// what was done again, what it cost, how it ended and what can be done.
//
// Pure: from the lines of events.jsonl and steps.jsonl, and from what is known of the driver's
// process, to text and JSON.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/report/recovery_table.h"
#include "train/report/run_event.h"
#include "train/report/run_registry.h"
#include "train/report/step_log.h"

namespace troupe::train {

// What a story is made of.
struct StorySources {
  // To tell of; empty: the last one of the events. An output directory may have had several, each
  // going on from the one before.
  std::string run;
  std::string output_dir;
  EventsFile events;
  std::vector<StepRecord> steps;
  // Of the run, where its events do not say it; from trainer_log.jsonl. 0: not known.
  std::int64_t total_steps = 0;
  // The newest checkpoint that is there and complete; empty: none.
  std::string newest_checkpoint;
  // What is known of the driver's process, besides the events.
  DriverState driver = DriverState::kUnknown;
  std::int64_t driver_pid = 0;
  std::int64_t driver_started_unix_us = 0;
  // What the driver itself noted about its end; it may have ended without the controller's word.
  std::optional<Status> driver_end;
  std::int64_t driver_ended_unix_us = 0;
  std::int64_t now_unix_us = 0;
};

enum class RunOutcome {
  kRunning,
  kFinished,
  kStopped,   // by the user
  kFailed,    // `end` says of what
  kVanished,  // the driver's process is gone and nobody wrote an end
  kUnknown,   // no end, and nothing is known of the driver
};
// "running", "finished", "stopped", "failed", "vanished", "unknown".
std::string_view outcome_name(RunOutcome outcome);

struct RunStory {
  std::string run;  // empty where the events do not name it
  std::string output_dir;
  std::optional<std::int64_t> world_size, total_steps;
  std::int64_t first_step = 0;    // steps done before it began
  std::string resumed_from;       // a checkpoint
  std::int64_t earlier_runs = 0;  // in the same directory, before it
  std::int64_t later_runs = 0;
  std::int64_t began_unix_us = 0;  // 0: not known
  std::int64_t ended_unix_us = 0;  // of a running one: now; 0: not known
  RunOutcome outcome = RunOutcome::kUnknown;
  Status end;                  // kFailed and kStopped: of what
  std::int64_t last_step = 0;  // that stands
  std::optional<double> first_loss, last_loss;
  std::string last_checkpoint;
  std::int64_t driver_pid = 0;  // 0: not known
  std::vector<Recovery> recoveries;
  RecoverySummary summary;
  // Events beside recoveries, in order: stragglers, replaced controllers and daemons, dead spares,
  // checkpoints given up, injected faults that ended no rank.
  std::vector<RunEvent> incidents;
  std::vector<std::string> notices;  // what it did by itself: stopping early, taking the best model
  std::vector<StepRecord> skipped;   // steps that updated nothing
  std::vector<Status> damaged;       // lines that could not be read

  std::string waits_for;  // of a running one: why it has no places; empty: it has

  double run_ms() const;  // 0: not known
};

// kNotFound where `sources.run` is named and is none of the events' runs.
Result<RunStory> read_story(const StorySources& sources);

// Several lines of text, each with its newline. With the table of recoveries where there are any.
std::string tell(const RunStory& story);
json::Object to_json(const RunStory& story);

}  // namespace troupe::train

#pragma once
// One line of events.jsonl: what happened to a run beside its steps, in a form for programs.
//
// Written by the controller, read by the story of a run (story.h) and by whoever measures.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"

namespace troupe::train {

inline constexpr const char* kEventsFile = "events.jsonl";

// Names of events.
namespace events {
inline constexpr const char* kStart = "start";  // a run begins, or goes on from `path`
inline constexpr const char* kFault = "fault";  // an injected fault strikes
// An injected fault struck a process of the cluster besides the trainers: `cause` says which.
inline constexpr const char* kStruck = "struck";
inline constexpr const char* kDeath = "death";          // a rank's process is gone
inline constexpr const char* kHang = "hang";            // a rank does not move; it is killed
inline constexpr const char* kStraggler = "straggler";  // a rank is slower than the others
inline constexpr const char* kWaiting = "waiting";  // for ranks' places; told again as it goes on
inline constexpr const char* kRespawn = "respawn";  // a rank has a new process
inline constexpr const char* kSpare = "spare";      // a rank was given to a spare process
inline constexpr const char* kReload = "reload";    // a rank read a checkpoint again
// The world has `world_size` ranks from here on, as machines come and go: `cause`.
inline constexpr const char* kResize = "resize";
inline constexpr const char* kResume = "resume";          // a new generation goes on after `step`
inline constexpr const char* kRecovered = "recovered";    // the first step after a failure stands
inline constexpr const char* kController = "controller";  // a new controller took the run over
inline constexpr const char* kKeeper = "keeper";  // a node's keeper is gone, with memory and ranks
inline constexpr const char* kCheckpointFailed = "checkpoint_failed";        // not written: `path`
inline constexpr const char* kCheckpointAbandoned = "checkpoint_abandoned";  // not finished: `path`
inline constexpr const char* kNotice = "notice";  // what the run does by itself, as `cause` says
// The finished model could not be written to `path`, and is kept in memory; it was written to
// `path` instead of the run's output directory.
inline constexpr const char* kModelHeld = "model_held";
inline constexpr const char* kModelSaved = "model_saved";
inline constexpr const char* kEnd = "end";  // nothing follows; code 0: as it should
}  // namespace events

struct RunEvent {
  std::string event;
  std::int64_t generation = 0;
  int rank = -1;           // -1: of no rank
  std::string node;        // brief id; empty: of no node, or not known
  std::int64_t step = -1;  // the last that stands; -1: not known

  // Everything below is written only where it is set.
  std::string cause;  // of what: a sentence or an error's text
  std::string doing;  // what the rank was doing: "step 41, backward of unit 3, operator gemm"
  std::vector<int> waited_for_by = {};  // ranks that wait for this one
  std::string path;                     // of a checkpoint
  std::string fault;                    // the injected fault's name; empty: from outside

  // Of `recovered`, where it is known; single events may tell their own part before. Milliseconds;
  // the parts follow each other, in the order in which they came about, and together they are
  // recovery_ms.
  std::optional<double> detected_after_ms;       // from the fault until it was noticed
  std::optional<double> respawn_ms;              // until every rank had a process again, or a spare
  std::optional<double> attach_ms;               // until every rank had its memory
  std::optional<double> reform_ms;               // until the ranks had met
  std::optional<double> first_step_ms;           // until the first step stood
  std::optional<double> recovery_ms;             // from the fault until the first step stood
  std::optional<std::int64_t> recomputed_steps;  // computed again, in whole or in part
  std::optional<std::int64_t> lost_steps;        // of those, finished before: undone by going back

  // Of `start`.
  std::string run;
  std::optional<std::int64_t> world_size;
  std::optional<std::int64_t> total_steps;
  // Of `resize`, beside its size: the number of the world, the run's first being 0, and which of
  // the run's trainers has which rank in it.
  std::optional<std::int64_t> world;
  std::vector<int> trainers = {};
  // Of `end`: a Code's number (runtime/base/status.h).
  std::optional<std::int64_t> code;

  // When it happened; set by reading, written from event_line's argument.
  std::int64_t unix_time_us = 0;

  friend bool operator==(const RunEvent&, const RunEvent&) = default;
};

// {"time": "2026-02-06T19:00:00.123456Z", "event": …, "generation", "rank", "node", "step", …},
// without a newline.
std::string event_line(const RunEvent& event, std::int64_t unix_time_us);

// The inverse. Fields that are not known are passed over: a later Troupe may write more. kDataLoss
// names `file` and `line_number` (the first is 1) and what is wrong.
Result<RunEvent> parse_event_line(std::string_view line, std::string_view file, int line_number);

struct EventsFile {
  std::vector<RunEvent> events;
  // Lines that are no events, such as one half written on a full disk: each says which and why.
  std::vector<Status> damaged;
};
// A whole events.jsonl, also while it grows: a last line without its newline is not there yet.
// kNotFound where there is no file.
Result<EventsFile> read_events(FileSystem& files, const std::string& path);

}  // namespace troupe::train

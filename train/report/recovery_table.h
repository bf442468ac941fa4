#pragma once
// The recoveries of a run, one line each: what failed, how long each part of the way back took, and
// what was computed again.
//
// Pure: from events to text and JSON.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "train/report/run_event.h"

namespace troupe::train {

// From what failed to the first step that stood again. Several failures before that step are one
// recovery: both ranks of two, or a death while others recover.
struct Recovery {
  // Deaths, hangs, lost keepers, in order; injected faults where there was none of these; may be
  // empty. `fault` names the injected fault where it was told apart.
  std::vector<RunEvent> causes;
  std::int64_t failures = 1;  // of them, those that no other brought about
  std::vector<int> ranks;     // that were lost, ascending, each once
  std::string fault;  // "SIGKILL", "hang", "keeper"; of injected faults "kill phase=forward"
  std::int64_t begun_unix_us = 0;
  std::int64_t step = -1;      // the last that stood before
  std::vector<int> spares;     // ranks that went to a spare process
  std::vector<int> respawned;  // ranks that got a new process otherwise
  std::string resumed;         // how the ranks went on, as the event `resume` has it
  bool reloaded = false;       // a checkpoint was read again, or the initial state made anew
  std::string reload_reason;   // why memory was not enough
  std::int64_t reloaded_step = -1;
  std::string reloaded_path;  // of the checkpoint, where it is known
  // False where the run ended, or was read, before a step stood again.
  bool finished = false;
  std::int64_t first_step = -1;  // that stood again
  std::int64_t ended_unix_us = 0;
  // As in RunEvent.
  std::optional<double> detected_after_ms, respawn_ms, attach_ms, reform_ms, first_step_ms;
  std::optional<double> recovery_ms;
  std::optional<std::int64_t> recomputed_steps, lost_steps;
};

// `events`: of one run, in order.
std::vector<Recovery> recoveries_of(std::span<const RunEvent> events);

struct RecoverySummary {
  std::int64_t faults = 0;               // failures; several may share a recovery
  std::int64_t unfinished = 0;           // recoveries that did not come to a step
  std::optional<double> p50_ms, max_ms;  // of the finished ones
  double lost_ms = 0;                    // together
  // 1 − time lost / time of the run; nothing where the run's time is not known, or what an
  // unfinished recovery cost.
  std::optional<double> goodput;
  std::int64_t recomputed_steps = 0;
  std::int64_t lost_steps = 0;
};
// `run_ms`: what the run took; 0: not known.
RecoverySummary summarize(std::span<const Recovery> recoveries, double run_ms);
// "2 faults, recovered in 212 ms (p50), 480 ms (max); goodput 98.2 %; 2 steps recomputed, steps
// lost 0"
std::string describe(const RecoverySummary& summary);

// A title, the header, a line for each recovery, the summary's line. Empty without recoveries.
//   fault  rank  step  detected after  respawn  attach  re-form  first step  recomputed  lost
std::string recovery_table(std::span<const Recovery> recoveries, double run_ms);
// "rank 1 (SIGKILL) recovered in 212 ms: noticed after 1, respawn 90, …; 1 step recomputed, 0 lost"
std::string recovery_line(const Recovery& recovery);

json::Object to_json(const Recovery& recovery);
json::Object to_json(const RecoverySummary& summary);

// "ranks 0 and 2", "rank 1", "" without any.
std::string name_ranks(std::span<const int> ranks);
// "1 step", "2 steps".
std::string count_of(std::int64_t count, std::string_view one);
// "3.2", "212", "12400": milliseconds with as many digits as mean something.
std::string format_milliseconds(double milliseconds);

}  // namespace troupe::train

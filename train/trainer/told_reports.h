#pragma once
// What the trainers' reports and the decisions of RunState become for the user: lines for the
// driver (trainer_messages.h) and events. Pure.

#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "train/report/run_event.h"
#include "train/trainer/run_spec.h"
#include "train/trainer/run_state.h"
#include "train/trainer/trainer_messages.h"

namespace troupe::train {

json::Object driver_line(const StepReport& report);
json::Object driver_line(const EvaluationReport& report);
json::Object driver_line(const CheckpointReport& report);
json::Object driver_line(const WarningReport& report);

RunEvent to_event(const RecordEvent& command);

// The worlds whose ranks may hold what the run goes on from, the newest first: that of the last
// change which the events tell, and those before it in which no step stood since. `first`: the one
// that it begins with; `steps`: done so far.
std::vector<World> worlds_told(const std::vector<RunEvent>& events, World first,
                               std::int64_t steps);

// Where the run is as a report arrives.
struct RunPosition {
  std::uint64_t generation = 0;
  int rank = -1;  // that reports
  std::int64_t last_step = 0;
};
struct ToldEvent {
  RunEvent event;
  std::string text;  // for people; empty: the event alone
};
ToldEvent to_event(const CheckpointFailedReport& report, const RunPosition& at,
                   const RunSpec& spec);
ToldEvent to_event(const AbandonedReport& report, const RunPosition& at, const RunSpec& spec);
ToldEvent to_event(const ModelHeldReport& report, const RunPosition& at, const RunSpec& spec);
ToldEvent to_event(const ModelSavedReport& report, const RunPosition& at, const RunSpec& spec);
ToldEvent to_event(const NoticeReport& report, const RunPosition& at, const RunSpec& spec);

}  // namespace troupe::train

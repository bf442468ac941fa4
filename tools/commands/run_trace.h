#pragma once
// A training run's steps and recoveries, as trace events.

#include <string>
#include <vector>

#include "tools/commands/trace_events.h"
#include "train/report/run_event.h"
#include "train/report/step_log.h"

namespace troupe::tools {

// `steps` in order. Events have times; steps only durations: after an event that says which step
// stood then, they follow it back to back; those before the first such event end with it. Without
// any such event they begin at time 0. Steps without durations are left out ("steps_without_times"
// in otherData).
json::Value run_trace(const std::string& name, const std::vector<train::RunEvent>& events,
                      const std::vector<train::StepRecord>& steps);

}  // namespace troupe::tools

#pragma once
// What tests of RunState share: finding commands, and ranks that run.

#include <string>
#include <vector>

#include "train/trainer/run_state.h"

namespace troupe::train::run_state_test {

template <typename T>
const T* find(const std::vector<RunCommand>& commands) {
  for (const auto& command : commands) {
    if (const auto* found = get_if<T>(&command)) return found;
  }
  return nullptr;
}

inline const RecordEvent* record(const std::vector<RunCommand>& commands, const std::string& name) {
  for (const auto& command : commands) {
    const auto* found = get_if<RecordEvent>(&command);
    if (found && found->event == name) return found;
  }
  return nullptr;
}

inline Status killed() { return error(Code::kActorDied, "killed by signal 9"); }

// All trainers alive on their nodes (by trainer; empty: all on one), generation 1 running.
inline RunState all_running(const RunSettings& settings, std::vector<std::string> nodes = {}) {
  RunState run(settings);
  for (int trainer = settings.world_size + settings.spares - 1; trainer >= 0; --trainer) {
    const auto node = nodes.empty() ? "n" : nodes.at(static_cast<std::size_t>(trainer));
    run.apply(TrainerAlive{trainer, 1, node}, {});
  }
  return run;
}

}  // namespace troupe::train::run_state_test

#include "runtime/wire/types.h"

#include <string.h>

namespace troupe::wire {

std::string_view actor_state_name(ActorState state) {
  switch (state) {
    case ActorState::kPending:
      return "pending";
    case ActorState::kStarting:
      return "starting";
    case ActorState::kAlive:
      return "alive";
    case ActorState::kRestarting:
      return "restarting";
    case ActorState::kDead:
      return "dead";
  }
  return "unknown";
}

std::string_view node_state_name(NodeState state) {
  switch (state) {
    case NodeState::kAlive:
      return "alive";
    case NodeState::kDead:
      return "dead";
    case NodeState::kDraining:
      return "draining";
    case NodeState::kSuspected:
      return "suspected";
  }
  return "unknown";
}

std::string ExitStatus::to_string() const {
  if (signal == 0) return fmt::format("exit code {}", exit_code);
  const char* name = sigabbrev_np(signal);
  if (name == nullptr) return fmt::format("killed by signal {}", signal);
  return fmt::format("killed by signal {} (SIG{})", signal, name);
}

}  // namespace troupe::wire

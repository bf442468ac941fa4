#include "runtime/wire/types.h"

#include <string.h>

#include <algorithm>

#include "runtime/wire/control_messages.h"
#include "runtime/wire/gpu.h"

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

std::string_view gpu_path_name(GpuPath path) {
  switch (path) {
    case GpuPath::kInternal:
      return "INTERNAL";
    case GpuPath::kSwitch:
      return "PIX";
    case GpuPath::kSwitches:
      return "PXB";
    case GpuPath::kHostBridge:
      return "PHB";
    case GpuPath::kNumaNode:
      return "NODE";
    case GpuPath::kSystem:
      return "SYS";
  }
  return "unknown";
}

std::string_view gpu_state_name(GpuState state) {
  switch (state) {
    case GpuState::kFree:
      return "free";
    case GpuState::kHeld:
      return "held";
    case GpuState::kReleasing:
      return "releasing";
    case GpuState::kStuck:
      return "stuck";
    case GpuState::kLost:
      return "lost";
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

std::string_view placement_strategy_name(PlacementStrategy strategy) {
  switch (strategy) {
    case PlacementStrategy::kPack:
      return "PACK";
    case PlacementStrategy::kSpread:
      return "SPREAD";
    case PlacementStrategy::kStrictPack:
      return "STRICT_PACK";
    case PlacementStrategy::kStrictSpread:
      return "STRICT_SPREAD";
  }
  return "unknown";
}

std::string_view placement_group_state_name(PlacementGroupState state) {
  switch (state) {
    case PlacementGroupState::kPending:
      return "pending";
    case PlacementGroupState::kPreparing:
      return "preparing";
    case PlacementGroupState::kCreated:
      return "created";
    case PlacementGroupState::kRescheduling:
      return "rescheduling";
    case PlacementGroupState::kRemoved:
      return "removed";
  }
  return "unknown";
}

std::string_view job_state_name(JobState state) {
  switch (state) {
    case JobState::kPending:
      return "PENDING";
    case JobState::kRunning:
      return "RUNNING";
    case JobState::kSucceeded:
      return "SUCCEEDED";
    case JobState::kFailed:
      return "FAILED";
    case JobState::kStopped:
      return "STOPPED";
  }
  return "unknown";
}

std::string_view restart_strategy_name(RestartStrategy strategy) {
  switch (strategy) {
    case RestartStrategy::kOneForOne:
      return "one-for-one";
    case RestartStrategy::kAllForOne:
      return "all-for-one";
    case RestartStrategy::kRestForOne:
      return "rest-for-one";
  }
  return "unknown";
}

std::string_view supervisor_state_name(SupervisorState state) {
  switch (state) {
    case SupervisorState::kRunning:
      return "running";
    case SupervisorState::kRestarting:
      return "restarting";
    case SupervisorState::kEnded:
      return "ended";
  }
  return "unknown";
}

std::string ExitStatus::to_string() const {
  if (signal == 0) return fmt::format("exit code {}", exit_code);
  const char* name = sigabbrev_np(signal);
  if (name == nullptr) return fmt::format("killed by signal {}", signal);
  return fmt::format("killed by signal {} (SIG{})", signal, name);
}

std::string OutputLine::new_text() const {
  std::string result = text.substr(std::min<std::size_t>(shown_bytes, text.size()));
  if (end == LineEnd::kNewline) result += '\n';
  if (end == LineEnd::kReturn) result += '\r';
  return result;
}

}  // namespace troupe::wire

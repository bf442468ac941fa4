#include "runtime/wire/types.h"

#include <string.h>

#include <algorithm>

#include "runtime/wire/control_messages.h"
#include "runtime/wire/gpu.h"

namespace troupe {
namespace {

// The name of a value, of as many as there are values.
template <typename Enum, std::size_t N>
std::string_view one_of(Enum value, const std::string_view (&names)[N]) {
  static_assert(N == static_cast<std::size_t>(last_value(Enum())) + 1);
  const auto index = static_cast<std::size_t>(value);
  return index < N ? names[index] : "unknown";
}

}  // namespace

std::string_view actor_state_name(ActorState state) {
  return one_of(state, {"pending", "starting", "alive", "restarting", "dead"});
}

std::string_view node_state_name(NodeState state) {
  return one_of(state, {"alive", "dead", "draining", "suspected"});
}

std::string_view placement_strategy_name(PlacementStrategy strategy) {
  return one_of(strategy, {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"});
}

std::string_view placement_group_state_name(PlacementGroupState state) {
  return one_of(state, {"pending", "preparing", "created", "rescheduling", "removed"});
}

std::string_view restart_strategy_name(RestartStrategy strategy) {
  return one_of(strategy, {"one-for-one", "all-for-one", "rest-for-one"});
}

std::string_view supervisor_state_name(SupervisorState state) {
  return one_of(state, {"running", "restarting", "ended"});
}

namespace wire {

std::string_view gpu_path_name(GpuPath path) {
  return one_of(path, {"INTERNAL", "PIX", "PXB", "PHB", "NODE", "SYS"});
}

std::string_view gpu_state_name(GpuState state) {
  return one_of(state, {"free", "held", "releasing", "stuck", "lost"});
}

std::string_view job_state_name(JobState state) {
  return one_of(state, {"PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"});
}

std::string ExitStatus::to_string() const {
  if (signal == 0) return fmt::format("exit code {}", exit_code);
  const char* name = sigabbrev_np(signal);
  if (name == nullptr) return fmt::format("killed by signal {}", signal);
  return fmt::format("killed by signal {} (SIG{})", signal, name);
}

Status check(const Package& package) {
  if (package.empty()) return {};
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (package.sha256.size() == 64 && package.size_bytes != 0 &&
      std::all_of(package.sha256.begin(), package.sha256.end(), is_digit)) {
    return {};
  }
  return error(
      Code::kInvalidArgument,
      "a package is named by the SHA-256 of its bytes and their number, not by '{}' and {}",
      package.sha256.substr(0, 80), package.size_bytes);
}

std::string Package::to_string() const {
  return fmt::format("package {} ({:.1f} MiB)", sha256.substr(0, 12),
                     static_cast<double>(size_bytes) / (1u << 20));
}

std::string OutputLine::new_text() const {
  std::string result = text.substr(std::min<std::size_t>(shown_bytes, text.size()));
  if (end == LineEnd::kNewline) result += '\n';
  if (end == LineEnd::kReturn) result += '\r';
  return result;
}

}  // namespace wire
}  // namespace troupe

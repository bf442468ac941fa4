#include "train/cuda/communicator/nccl_environment.h"

#include <stdlib.h>

#include <charconv>

namespace troupe::train {
namespace {

constexpr const char* kTimeoutVariables[] = {"AXOLOTL_NCCL_TIMEOUT", "NCCL_TIMEOUT"};
constexpr Duration kDefaultTimeout = std::chrono::minutes(30);
constexpr std::int64_t kTimeoutMaxS = 1'000'000'000;

struct Ineffective {
  const char* name;
  const char* why;
};
// Of torch.distributed: what they ask for is so, or has no counterpart.
constexpr Ineffective kIneffective[] = {
    {"TORCH_NCCL_AVOID_RECORD_STREAMS", "buffers live as long as their generation"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "errors are always watched for, and end the generation"},
    {"NCCL_ASYNC_ERROR_HANDLING", "errors are always watched for, and end the generation"},
    {"TORCH_NCCL_BLOCKING_WAIT", "every wait has a deadline"},
    {"NCCL_BLOCKING_WAIT", "every wait has a deadline"},
    {"TORCH_NCCL_ENABLE_MONITORING", "a communicator is always watched"},
    {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "a hanging rank is found by its progress record"},
};

Result<Duration> parse_seconds(const char* name, const std::string& text) {
  std::int64_t seconds = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (failure != std::errc() || end != text.data() + text.size() || seconds < 1 ||
      seconds > kTimeoutMaxS)
    return error(Code::kInvalidArgument, "{}={}: a whole number of seconds from 1 to {} is meant",
                 name, text, kTimeoutMaxS);
  return Duration(std::chrono::seconds(seconds));
}

}  // namespace

Result<NcclTimeout> nccl_timeout(const Environment& environment,
                                 std::optional<Duration> configured) {
  NcclTimeout timeout{
      configured.value_or(kDefaultTimeout), configured ? "ddp_timeout" : "the default", {}};
  bool decided = configured.has_value();
  for (const char* name : kTimeoutVariables) {
    const auto text = environment.get(name);
    if (!text || text->empty()) continue;
    if (decided) {
      timeout.notices.push_back(
          fmt::format("{}={} has no effect: {} comes first", name, *text, timeout.source));
      continue;
    }
    timeout.limit = TROUPE_TRY(parse_seconds(name, *text));
    timeout.source = name;
    decided = true;
  }
  for (const auto& [name, why] : kIneffective)
    if (environment.get(name))
      timeout.notices.push_back(fmt::format("{} has no effect: {}", name, why));
  return timeout;
}

std::optional<EnvironmentSetting> peer_access_setting(const Environment& environment,
                                                      std::span<const PeerAccess> pairs) {
  constexpr const char* kVariable = "NCCL_P2P_DISABLE";
  if (environment.get(kVariable)) return std::nullopt;
  for (const PeerAccess& pair : pairs) {
    if (pair.possible) continue;
    return EnvironmentSetting{
        kVariable, "1",
        fmt::format("the GPUs of ranks {} and {} cannot read each other's memory", pair.rank,
                    pair.other)};
  }
  return std::nullopt;
}

std::optional<EnvironmentSetting> nonblocking_setting(const Environment& environment) {
  constexpr const char* kVariable = "NCCL_COMM_BLOCKING";
  const auto said = environment.get(kVariable);
  if (!said || *said == "0") return std::nullopt;
  return EnvironmentSetting{
      kVariable, "0",
      fmt::format("calls of NCCL that block, as {}={} asks for, would have no deadline", kVariable,
                  *said)};
}

std::map<std::string, std::string> communicator_variables(const char* const* variables) {
  std::map<std::string, std::string> found;
  for (; *variables; ++variables) {
    const std::string_view text = *variables;
    const std::size_t end = text.find('=');
    if (end == text.npos) continue;
    const std::string_view name = text.substr(0, end);
    const bool ours = name.starts_with("NCCL_") || name.starts_with("TORCH_NCCL_") ||
                      name == "AXOLOTL_NCCL_TIMEOUT" || name == "TROUPE_NCCL";
    if (ours && name != "NCCL_HOSTID") found.emplace(name, text.substr(end + 1));
  }
  return found;
}

void apply_setting(const EnvironmentSetting& setting) {
  ::setenv(setting.name.c_str(), setting.value.c_str(), 1);
}

}  // namespace troupe::train

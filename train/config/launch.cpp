#include "train/config/launch.h"

#include <algorithm>
#include <charconv>

#include "runtime/base/suggest.h"

namespace troupe::train {
namespace {

std::optional<std::string> text_of(const Environment& environment, std::string_view name) {
  auto value = environment.get(name);
  if (!value || trim(*value).empty()) return std::nullopt;
  return std::string(trim(*value));
}

Result<std::optional<std::int64_t>> number_of(const Environment& environment, std::string_view name,
                                              std::int64_t least, std::int64_t most) {
  const auto text = text_of(environment, name);
  if (!text) return std::optional<std::int64_t>();
  std::int64_t value = 0;
  const auto [end, ec] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (ec != std::errc() || end != text->data() + text->size()) {
    return error(Code::kInvalidArgument, "environment {}: '{}' is no whole number", name, *text);
  }
  if (value < least || value > most) {
    return error(Code::kInvalidArgument, "environment {}: {} is not between {} and {}", name, value,
                 least, most);
  }
  return std::optional<std::int64_t>(value);
}

Status refuse_unsupported(const Environment& environment) {
  struct Switch {
    const char* name;
    const char* why;
  };
  constexpr Switch kSwitches[] = {
      {"USE_MCA", "Megatron core is another runtime"},
      {"USE_MEGATRON_BRIDGE", "Megatron is another runtime"},
      {"USE_KT", "KTransformers is another runtime"},
      {"USE_V1", "LLaMA-Factory's v1 configurations are not read"},
  };
  for (const auto& entry : kSwitches) {
    if (environment.enabled(entry.name)) {
      return error(Code::kUnsupported, "environment {}={} is not supported: {}; unset it",
                   entry.name, *environment.get(entry.name), entry.why);
    }
  }
  return {};
}

}  // namespace

Result<LaunchEnvironment> read_launch_environment(const Environment& environment) {
  constexpr std::int64_t kNodesMax = 1 << 16;
  TROUPE_RETURN_IF_ERROR(refuse_unsupported(environment));
  LaunchEnvironment out;
  out.use_ray = environment.enabled("USE_RAY");
  out.force_torchrun = environment.enabled("FORCE_TORCHRUN");
  out.nnodes = TROUPE_TRY(number_of(environment, "NNODES", 1, kNodesMax));
  const auto node_rank = TROUPE_TRY(number_of(environment, "NODE_RANK", 0, kNodesMax - 1));
  out.node_rank = node_rank.value_or(0);
  out.nproc_per_node = TROUPE_TRY(number_of(environment, "NPROC_PER_NODE", 1, 4096));
  out.master_addr = text_of(environment, "MASTER_ADDR");
  out.master_port = TROUPE_TRY(number_of(environment, "MASTER_PORT", 1, 65535));
  out.rdzv_id = text_of(environment, "RDZV_ID");
  out.min_nnodes = TROUPE_TRY(number_of(environment, "MIN_NNODES", 1, kNodesMax));
  out.max_nnodes = TROUPE_TRY(number_of(environment, "MAX_NNODES", 1, kNodesMax));
  out.max_restarts = TROUPE_TRY(number_of(environment, "MAX_RESTARTS", 0, 1'000'000));
  if (const auto optim = text_of(environment, "OPTIM_TORCH")) {
    out.optim_torch = environment.enabled("OPTIM_TORCH");
  }
  out.address = text_of(environment, "TROUPE_ADDRESS");
  if (out.node_rank >= out.node_count()) {
    return error(Code::kInvalidArgument,
                 "environment NODE_RANK: {} is not below NNODES, which is {}", out.node_rank,
                 out.node_count());
  }
  if (out.min_nnodes && out.max_nnodes && *out.min_nnodes > *out.max_nnodes) {
    return error(Code::kInvalidArgument, "environment MIN_NNODES: {} is more than MAX_NNODES, {}",
                 *out.min_nnodes, *out.max_nnodes);
  }
  return out;
}

WorldSize resolve_world_size(const TrainConfig& config, const LaunchEnvironment& launch,
                             std::int64_t gpu_count) {
  if (config.troupe.workers) return {*config.troupe.workers, "troupe.workers"};
  if (config.launch.ray_num_workers) return {*config.launch.ray_num_workers, "ray_num_workers"};
  if (launch.nnodes || launch.nproc_per_node) {
    const auto per_node = launch.nproc_per_node.value_or(std::max<std::int64_t>(1, gpu_count));
    return {launch.node_count() * per_node, launch.processes_from};
  }
  if (gpu_count > 0) return {gpu_count, "GPUs of this machine"};
  return {1, "default"};
}

std::int64_t resolve_threads_per_worker(const TrainConfig& config, std::int64_t cores,
                                        std::int64_t local_workers) {
  if (config.troupe.threads_per_worker) return *config.troupe.threads_per_worker;
  return std::max<std::int64_t>(1, cores / std::max<std::int64_t>(1, local_workers));
}

std::optional<std::string> resolve_address(const TrainConfig& config,
                                           const LaunchEnvironment& launch) {
  return config.troupe.address ? config.troupe.address : launch.address;
}

}  // namespace troupe::train

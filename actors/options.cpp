#include "actors/options.h"

#include <cmath>

namespace troupe::detail {
namespace {

Status add_resource(wire::Resources& resources, const std::string& name, double amount) {
  const double units = amount * static_cast<double>(wire::kResourceUnit);
  if (!(amount >= 0) || units > 9e15) {
    return error(Code::kInvalidArgument, "ActorOptions: {} of {} is not an amount", amount, name);
  }
  const auto fixed = static_cast<std::int64_t>(std::llround(units));
  if (std::abs(static_cast<double>(fixed) - units) > 1e-3) {
    return error(Code::kInvalidArgument, "ActorOptions: {} of {} is not a multiple of 1/{}", amount,
                 name, wire::kResourceUnit);
  }
  if (fixed > 0) resources[name] = fixed;
  return {};
}

}  // namespace

Result<wire::ActorSpec> make_spec(const ActorOptions& options) {
  wire::ActorSpec spec;
  spec.name = options.name;
  TROUPE_RETURN_IF_ERROR(add_resource(spec.resources, "CPU", options.num_cpus));
  TROUPE_RETURN_IF_ERROR(add_resource(spec.resources, "GPU", options.num_gpus));
  TROUPE_RETURN_IF_ERROR(add_resource(spec.resources, "memory", options.memory_bytes));
  for (const auto& [name, amount] : options.resources) {
    if (name.empty() || name == "CPU" || name == "GPU" || name == "memory") {
      return error(Code::kInvalidArgument,
                   "ActorOptions::resources: '{}' is not a kind of the user's own. Use num_cpus, "
                   "num_gpus, memory_bytes",
                   name);
    }
    TROUPE_RETURN_IF_ERROR(add_resource(spec.resources, name, amount));
  }
  if (options.max_restarts < -1 || options.restart_window.count() < 0 ||
      options.backoff_initial.count() < 0 || options.backoff_max < options.backoff_initial) {
    return error(
        Code::kInvalidArgument,
        "ActorOptions: max_restarts ({}) is at least -1, restart_window and backoff_initial "
        "are not negative, and backoff_max is at least backoff_initial",
        options.max_restarts);
  }
  spec.restart = {.max_restarts = options.max_restarts,
                  .window_ms = options.restart_window.count(),
                  .backoff_initial_ms = options.backoff_initial.count(),
                  .backoff_max_ms = options.backoff_max.count()};
  spec.node_affinity = options.node_affinity;
  spec.detached = options.detached;
  spec.run = options.run;
  spec.rank = options.rank;
  spec.environment = options.environment;
  spec.log_path = options.log_path;
  return spec;
}

}  // namespace troupe::detail

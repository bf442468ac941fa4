#include "troupe/options.h"

#include <cmath>

#include "actors/actor_spec.h"
#include "runtime/base/limits.h"
#include "scheduler/policy/labels.h"
#include "scheduler/policy/resources.h"
#include "troupe/codec.h"
#include "troupe/concurrency.h"

namespace troupe::detail {
namespace {

constexpr std::uint64_t kCallLimitsMark = 0x6c6c61632d70726cULL;

}  // namespace

Status add_resource(wire::Resources& resources, const std::string& name, double amount,
                    const char* where) {
  const double units = amount * static_cast<double>(wire::kResourceUnit);
  if (!(amount >= 0) || units > 9e15) {
    return error(Code::kInvalidArgument, "{}: {} of {} is not an amount", where, amount, name);
  }
  const auto fixed = static_cast<std::int64_t>(std::llround(units));
  if (std::abs(static_cast<double>(fixed) - units) > 1e-3) {
    return error(Code::kInvalidArgument, "{}: {} of {} is not a multiple of 1/{}", where, amount,
                 name, wire::kResourceUnit);
  }
  if (fixed > 0) resources[name] = fixed;
  return {};
}

Result<wire::ActorSpec> make_spec(const ActorOptions& options) {
  wire::ActorSpec spec;
  spec.name = options.name;
  constexpr const char* kWhere = "ActorOptions";
  TROUPE_RETURN_IF_ERROR(add_resource(spec.resources, "CPU", options.num_cpus, kWhere));
  TROUPE_RETURN_IF_ERROR(add_resource(spec.resources, "GPU", options.num_gpus, kWhere));
  TROUPE_RETURN_IF_ERROR(add_resource(spec.resources, "memory", options.memory_bytes, kWhere));
  for (const auto& [name, amount] : options.resources) {
    if (name.empty() || name == "CPU" || name == "GPU" || name == "memory") {
      return error(Code::kInvalidArgument,
                   "ActorOptions::resources: '{}' is not a kind of the user's own. Use num_cpus, "
                   "num_gpus, memory_bytes",
                   name);
    }
    TROUPE_RETURN_IF_ERROR(add_resource(spec.resources, name, amount, kWhere));
  }
  const Status gpus = scheduler::check_gpus(spec.resources, options.environment);
  if (!gpus.ok()) return gpus.prefixed("ActorOptions");
  if (options.max_restarts < -1 || options.restart_window.count() < 0 ||
      options.backoff_initial.count() < 0 || options.backoff_max < options.backoff_initial) {
    return error(
        Code::kInvalidArgument,
        "ActorOptions: max_restarts ({}) is at least -1, restart_window and backoff_initial "
        "are not negative, and backoff_max is at least backoff_initial",
        options.max_restarts);
  }
  if (options.isolation == Isolation::kShared &&
      (options.max_concurrency > 1 || options.max_pending_calls > 0)) {
    return Status(Code::kInvalidArgument,
                  "ActorOptions: max_concurrency and max_pending_calls are for actors with a "
                  "process of their own; light actors share one thread and one mailbox");
  }
  spec.restart = {.max_restarts = options.max_restarts,
                  .window_ms = options.restart_window.count(),
                  .backoff_initial_ms = options.backoff_initial.count(),
                  .backoff_max_ms = options.backoff_max.count()};
  if (options.light_per_host < 1 || options.light_per_host > limits::kLightPerHostMax) {
    return error(Code::kInvalidArgument, "ActorOptions: light_per_host ({}) is 1 to {}",
                 options.light_per_host, limits::kLightPerHostMax);
  }
  if (options.node_affinity && options.node_affinity->empty()) {
    return Status(Code::kInvalidArgument,
                  "ActorOptions: node_affinity is the empty id; a connected driver's own node is "
                  "object_store().value().node_id");
  }
  if (options.node_affinity_soft && !options.node_affinity) {
    return Status(Code::kInvalidArgument,
                  "ActorOptions: node_affinity_soft without a node_affinity");
  }
  if (options.bundle_index < -1 || (options.bundle_index >= 0 && options.placement_group.empty())) {
    return error(Code::kInvalidArgument,
                 "ActorOptions: bundle_index {} is at least -1, and needs a placement_group",
                 options.bundle_index);
  }
  if (options.max_concurrency < 0 || options.max_concurrency > kConcurrencyMax ||
      options.max_pending_calls < 0 ||
      static_cast<std::size_t>(options.max_pending_calls) > limits::kMailboxCallsMax) {
    return error(
        Code::kInvalidArgument,
        "ActorOptions: max_concurrency ({}) is from 1 to {} and max_pending_calls ({}) from "
        "1 to {}; 0 leaves them to the class",
        options.max_concurrency, kConcurrencyMax, options.max_pending_calls,
        limits::kMailboxCallsMax);
  }
  spec.node_affinity = options.node_affinity;
  spec.node_affinity_soft = options.node_affinity_soft;
  auto selector = scheduler::parse_label_selector(options.label_selector);
  if (!selector.ok()) return selector.status().prefixed("ActorOptions::label_selector");
  spec.label_selector = std::move(*selector);
  auto preference = scheduler::parse_label_selector(options.label_preference);
  if (!preference.ok()) return preference.status().prefixed("ActorOptions::label_preference");
  spec.label_preference = std::move(*preference);
  spec.placement_group = options.placement_group;
  spec.bundle_index = options.bundle_index;
  spec.priority = options.priority;
  spec.detached = options.detached;
  spec.namespace_name = options.namespace_name;
  if (!options.namespace_name.empty() && options.name.empty()) {
    return error(Code::kInvalidArgument,
                 "ActorOptions: namespace_name '{}' without a name that could be in it",
                 options.namespace_name);
  }
  if (!options.supervisor.empty() && options.max_restarts != 0) {
    return Status(Code::kInvalidArgument,
                  "ActorOptions: under a supervisor, that one decides about restarts: leave "
                  "max_restarts at 0");
  }
  spec.supervisor = options.supervisor;
  if (options.health_interval.count() < 0 || options.health_timeout.count() <= 0) {
    return Status(Code::kInvalidArgument,
                  "ActorOptions: health_interval is not negative, and health_timeout is positive");
  }
  if (options.health_interval.count() > 0) {
    spec.health = {.interval_ms = options.health_interval.count(),
                   .timeout_ms = options.health_timeout.count()};
  }
  spec.on_head_loss = options.on_head_loss;
  if (options.replicas != 0 && options.replicas != 1) {
    return error(Code::kInvalidArgument,
                 "ActorOptions: replicas ({}) is 0, or 1 for a copy on another node",
                 options.replicas);
  }
  if (options.replicas > 0 && options.isolation == Isolation::kShared) {
    return Status(Code::kInvalidArgument,
                  "ActorOptions: replicas is for actors with a process of their own; what a light "
                  "actor saves has no copy");
  }
  spec.replicas = static_cast<std::uint32_t>(options.replicas);
  spec.awaits_nodes = options.awaits_nodes;
  spec.run = options.run;
  spec.rank = options.rank;
  spec.environment = options.environment;
  spec.log_path = options.log_path;
  spec.start_empty_on_state_loss = options.start_empty_on_state_loss;
  return spec;
}

wire::Bytes with_call_limits(const CallLimits& limits, wire::Bytes constructor_arguments) {
  if (limits.max_concurrency == 0 && limits.max_pending_calls == 0) return constructor_arguments;
  Encoder out;
  out.put(kCallLimitsMark);
  out.put(limits.max_concurrency);
  out.put(limits.max_pending_calls);
  out.append(constructor_arguments.data(), constructor_arguments.size());
  return out.take();
}

CallLimits take_call_limits(std::span<const std::byte>& constructor_arguments) {
  CallLimits limits;
  Decoder in(constructor_arguments);
  std::uint64_t mark = 0;
  if (!in.get(mark) || mark != kCallLimitsMark || !in.get(limits.max_concurrency) ||
      !in.get(limits.max_pending_calls)) {
    return {};
  }
  constructor_arguments = constructor_arguments.last(in.remaining());
  return limits;
}

}  // namespace troupe::detail

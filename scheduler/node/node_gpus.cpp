// Which GPUs an actor's process gets, when it may start, and what happens to them.

#include <algorithm>

#include "scheduler/node/cuda_visible.h"
#include "scheduler/node/gpu_faults.h"
#include "scheduler/node/kept_keys.h"
#include "scheduler/node/log_pipes.h"
#include "scheduler/node/node_state.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {

wire::NodeInfo NodeState::info() const {
  wire::NodeInfo node = config_.node;
  if (const auto gpus = node.total.find(kGpu); gpus != node.total.end()) {
    gpus->second = gpus_.amount();
    node.available = node.total;
  }
  return node;
}

// Segments may be memory of a device, and stay when their owner is gone.
bool NodeState::keeps_memory(const JobId& job_id) const {
  const auto first = segments_.lower_bound({job_id, {}});
  return first != segments_.end() && first->first.first == job_id;
}

// False: its saved state or its package is not here yet, or its GPUs are not free yet, or it will
// never have them (settle_gpus says so).
bool NodeState::start_queued(Actor& actor) {
  if (actor.fetching || !check_package(actor.spec).ok() || awaits_package(actor)) return false;
  const std::int64_t amount = amount_of(actor.spec.resources, kGpu);
  if (amount > 0) {
    const auto keeps = [this](const JobId& job_id) { return keeps_memory(job_id); };
    const wire::GpuHolder holder{actor.spec.actor_id, output_label(actor.spec), amount};
    if (!gpus_.check(amount).ok()) return false;
    if (!gpus_.take(holder, actor.spec.job_id, actor.gpus, keeps)) return false;
    actor.gpus = gpus_.names_of(actor.spec.actor_id);
    keep_gpus();
  }
  actor.phase = Phase::kSpawning;
  const HostId log = std::exchange(actor.log, actor.host);
  keep(actor, true);
  node_command::SpawnHost spawn{actor.host, actor.spec, actor.generation, log};
  if (gpus_.any_device()) {
    auto devices = cuda_environment(gpus_.devices_of(actor.spec.actor_id));
    if (amount > 0) {
      for (auto& [name, value] : devices) spawn.spec.environment[name] = std::move(value);
    } else if (!spawn.spec.environment.contains(kCudaVisibleDevices)) {
      // None, unless the actor's own environment says which.
      spawn.spec.environment[kCudaVisibleDevices] = "";
    }
  }
  const auto visible = amount > 0 ? gpus_.devices_of(actor.spec.actor_id) : visit_gpus(actor.spec);
  spawn.spec.environment.merge(gpu_facts_environment(visible, config_.gpus.without_peer_access));
  commands_.push_back(std::move(spawn));
  return true;
}

// A process without GPUs of its own may be on some all the same: those.
std::vector<wire::GpuDevice> NodeState::visit_gpus(const wire::ActorSpec& spec) {
  const auto visible = spec.environment.find(kCudaVisibleDevices);
  if (visible == spec.environment.end()) return {};
  auto devices = cuda_visible(visible->second, config_.gpus.devices);
  std::vector<std::string> names;
  for (const wire::GpuDevice& device : devices) names.push_back(cuda_name(device));
  gpus_.visit({spec.actor_id, output_label(spec), 0}, names);
  return devices;
}

void NodeState::on(node_event::GpusRead& event) {
  if (event.number != 0) gpus_asked_ = false;
  gpus_.seen(event.number, event.readings);
  for (const GpuReading& reading : event.readings) {
    if (reading.lost) lose_gpu(reading.uuid, reading.status.message());
  }
  if (const auto interval = gpus_.reading_interval()) read_gpus_at_ = now_ + *interval;
}

void NodeState::on(node_event::GpuFailed& event) {
  const GpuFaultMeaning meaning = meaning_of(event.fault);
  const std::string text = describe(event.fault);
  if (meaning.blame == GpuBlame::kDevice) return lose_gpu(event.fault.uuid, text);
  note(meaning.blame == GpuBlame::kProcess ? "gpu_process_error" : "gpu_notice",
       fmt::format("{} on node {}: {}", event.fault.uuid, name_, text));
}

// Its actors are ended: they start elsewhere, or on another device.
void NodeState::lose_gpu(const std::string& uuid, const std::string& why) {
  for (const ActorId& id : gpus_.lose(uuid, why)) {
    const auto found = actors_.find(id);
    if (found == actors_.end() || !found->second.has_process()) continue;
    Actor& actor = found->second;
    if (actor.cause.ok()) {
      actor.cause =
          error(Code::kUnavailable, "its GPU {} of node {} is lost: {}", uuid, name_, why);
      actor.cause.with("gpu", uuid);
    }
    kill(actor);
    keep(actor);
  }
}

void NodeState::read_gpus() {
  gpus_asked_ = true;
  read_gpus_at_.reset();
  commands_.push_back(node_command::ReadGpus{gpus_.begin_reading()});
}

void NodeState::keep_gpus() {
  if (auto kept = gpus_.changed()) {
    commands_.push_back(node_command::Keep{kGpusKey, std::move(*kept), kNoFd, {}});
  }
}

void NodeState::announce_gpus() {
  if (!registered_ || end_status_ || gpus_announced_ == gpus_.amount()) return;
  gpus_announced_ = gpus_.amount();
  send(wire::NodeUpdate{info()});
}

// After everything else: who waited gets what is free now, in the order of asking.
void NodeState::settle_gpus() {
  gpus_.tick(now_, [this](const JobId& job_id) { return keeps_memory(job_id); });
  std::vector<HostId> waiting;
  for (const auto& [host, id] : by_host_) {
    if (actors_.at(id).phase == Phase::kQueued) waiting.push_back(host);
  }
  for (const HostId host : waiting) {
    Actor* actor = find(host);
    if (actor == nullptr) continue;
    if (!actor->killed && start_queued(*actor)) continue;
    const std::int64_t amount = amount_of(actor->spec.resources, kGpu);
    Status never = gpus_.check(amount);
    if (never.ok()) never = check_package(actor->spec);
    const bool waits = actor->fetching || awaits_package(*actor) || now_ < actor->gpus_by;
    if (!actor->killed && never.ok() && waits) continue;
    if (actor->cause.ok() && !never.ok()) {
      actor->cause = never.prefixed(fmt::format("node {}", name_));
    } else if (actor->cause.ok() && !actor->killed) {
      actor->cause =
          error(Code::kResourceExhausted, "node {} had not {} GPUs free for it within {} s: {}",
                name_, format_amount(kGpu, amount),
                std::chrono::duration_cast<std::chrono::seconds>(config_.gpu_wait).count(),
                gpus_.describe());
    }
    gone(*actor);
  }
  for (GpuDevices::Note& each : gpus_.take_notes()) {
    note(std::move(each.kind), fmt::format("node {}: {}", name_, each.text));
  }
  announce_gpus();
  keep_gpus();
  const auto interval = gpus_.reading_interval();
  if (!interval) {
    read_gpus_at_.reset();
  } else if (!gpus_asked_) {
    const TimePoint at = read_gpus_at_.value_or(now_);
    if (at <= now_) {
      read_gpus();
    } else {
      read_gpus_at_ = std::min(at, now_ + *interval);
    }
  } else {
    read_gpus_at_.reset();  // its answer sets it
  }
}

}  // namespace troupe::scheduler

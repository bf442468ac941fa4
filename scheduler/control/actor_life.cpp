#include <algorithm>

#include "runtime/base/check.h"
#include "scheduler/control/actors.h"
#include "scheduler/control/journal_bytes.h"
#include "scheduler/policy/program_kind.h"

namespace troupe::scheduler {
namespace {

template <typename Members, typename Key>
void erase_member(Members& all, const Key& key, ActorId id) {
  const auto found = all.find(key);
  if (found == all.end()) return;
  found->second.erase(id);
  if (found->second.empty()) all.erase(found);
}

// Of an actor's last output in the message of its death: enough for a stack trace, little to send.
constexpr std::size_t kDeathLogBytesMax = 2048;

Status death_of(const ActorRecord& actor, const std::string& node,
                const wire::ActorExited& exited) {
  std::string text = fmt::format("{} on node {} ", describe(actor), node);
  if (exited.constructor_failed) {
    text += fmt::format("failed in its constructor: {}", exited.cause.message());
  } else if (exited.cause.code() == Code::kAborted) {
    text += fmt::format("ended: {}", exited.cause.message());
  } else if (!exited.cause.ok()) {
    text += fmt::format("could not be started: {}", exited.cause.message());
  } else {
    text += fmt::format("ended: {}", exited.exit.to_string());
  }
  std::string_view tail = exited.log_tail;
  // A host that fails in the constructor writes the cause, too.
  if (const std::string told = fmt::format("troupe host: {}\n", exited.cause.to_string());
      exited.constructor_failed && tail.ends_with(told))
    tail.remove_suffix(told.size());
  if (!tail.empty()) {
    if (tail.size() > kDeathLogBytesMax) tail = tail.substr(tail.size() - kDeathLogBytesMax);
    text += fmt::format("; its last output:\n{}", tail);
  }
  Status death(Code::kActorDied, std::move(text));
  if (actor.spec.is_program() && exited.cause.ok()) {
    death.with(exited.exit.signal != 0 ? kExitSignalContext : kExitCodeContext,
               exited.exit.signal != 0 ? exited.exit.signal : exited.exit.exit_code);
  } else if (actor.spec.is_program() && exited.cause.code() != Code::kAborted) {
    death.with(kNotStartedContext, exited.cause.message());
  }
  // That its node's keeper was lost, and with it what the process kept there, is not said in words.
  for (const auto& [key, value] : exited.cause.context()) death.with(key, value);
  return death;
}

// Without the state that it had saved: neither its class nor its options say how to go on. The next
// process would refuse, too.
bool refused_to_begin(const ActorRecord& actor, const wire::ActorExited& exited) {
  return actor.state_lost && exited.constructor_failed && exited.cause.code() == Code::kDataLoss;
}

}  // namespace

// --- it waits, and starts ------------------------------------------------------------------------

const ActorRecord& Actors::create(wire::ActorSpec spec, std::uint64_t gang) {
  supervisors_.join(spec);
  ActorRecord& actor = records_[spec.actor_id];
  actor.gang = gang;
  actor.info.actor_id = spec.actor_id;
  actor.info.type = spec.type;
  actor.info.name = spec.name;
  actor.info.rank = spec.rank;
  actor.info.job_id = spec.job_id;
  actor.info.resources = spec.resources;
  actor.info.placement_group = spec.placement_group;
  actor.info.light_count = spec.light_count;
  actor.info.namespace_name = spec.namespace_name;
  actor.info.owner_name = clipped(owner_name(spec.owner, spec.owner_actor), kOwnerBytes);
  actor.info.owner_actor = spec.owner_actor;
  actor.info.detached = spec.detached;
  actor.info.awaits_nodes = spec.awaits_nodes;
  actor.info.supervisor = spec.supervisor;
  actor.spec = std::move(spec);
  index(actor);
  context_.record(ActorCreated{actor.spec, gang});
  context_.log("actor_created", {{}, actor.id()}, "{} created", describe(actor));
  enqueue(actor, gang != 0 ? gang : context_.next_order());
  return actor;
}

void Actors::enqueue(ActorRecord& actor, std::uint64_t order) {
  actor.queue_order = order;
  line_.add(actor);
  lined_up_.insert(actor.id());
  changed(actor);
}

void Actors::dequeue(ActorRecord& actor) {
  if (actor.queue_order == 0) return;
  line_.remove(actor);
  actor.queue_order = 0;
}

void Actors::start_on(const ActorRecord& record, const NodeRecord& node,
                      std::int32_t bundle_index) {
  TROUPE_CHECK(node.usable() && record.lease_generation == 0 && !record.has_process());
  ActorRecord& actor = edit(record);
  dequeue(actor);
  saw_generation(actor, nodes_.stray_generation(actor.id()));
  actor.info.generation = std::max(actor.info.generation, actor.generation_seen) + 1;
  actor.info.state = wire::ActorState::kStarting;
  actor.info.node_id = node.id();
  actor.info.endpoint = node.info.endpoint;
  actor.info.bundle_index = bundle_index;
  actor.info.pid = 0;
  actor.exit.reset();
  actor.started = false;
  actor.lease_generation = actor.info.generation;
  const BundleKey bundle{actor.spec.placement_group, bundle_index};
  nodes_.take_lease(node, actor.lease(), actor.spec.resources,
                    actor.in_group() ? &bundle : nullptr);
  wire::StartActor start{actor.spec, actor.info.generation};
  name_saved_state(actor, start);
  context_.log("actor_starting", {node.id(), actor.id(), actor.info.generation},
               "{} starts on node {}", describe(actor), node.info.name);
  changed(actor);
  start.spec.bundle_index = bundle_index;
  context_.send(node.peer, std::move(start));
}

const ActorRecord* Actors::current(PeerId peer, ActorId actor_id, std::uint64_t generation) const {
  const NodeRecord* node = nodes_.of_peer(peer);
  const ActorRecord* actor = find(actor_id);
  if (node == nullptr || actor == nullptr) return nullptr;
  const bool same = actor->has_process() && actor->info.generation == generation &&
                    actor->info.node_id == node->id();
  return same ? actor : nullptr;
}

void Actors::on(PeerId peer, wire::ActorStarted& message) {
  const ActorRecord* record = current(peer, message.actor_id, message.generation);
  if (record == nullptr) return;
  ActorRecord& actor = edit(*record);
  actor.started = true;
  actor.info.pid = message.pid;
  actor.info.calls_dropped = -1;
  changed(actor);
}

void Actors::on(PeerId peer, wire::ActorReady& message) {
  const ActorRecord* actor = current(peer, message.actor_id, message.generation);
  if (actor == nullptr) return;
  if (message.state_lost && actor->info.state_lost_generation < message.generation)
    tell_lost_state(edit(*actor), message.generation);
  if (actor->info.state != wire::ActorState::kStarting) return;
  if (!actor->stopping) edit(*actor).info.death = {};
  runs(edit(*actor));
}

void Actors::runs(ActorRecord& actor) {
  actor.info.state = wire::ActorState::kAlive;
  context_.log("actor_alive", actor.subject(), "{} is ready (pid {})", describe(actor),
               actor.info.pid);
  changed(actor);
}

void Actors::adopt(const ActorRecord& record, const NodeRecord& node,
                   const wire::RunningActor& running) {
  ActorRecord& actor = edit(record);
  if (actor.info.state == wire::ActorState::kRestarting) {
    dequeue(actor);
    actor.restart_at.reset();
    actor.info.state = wire::ActorState::kStarting;
  }
  actor.lease_generation = running.generation;
  actor.started = true;
  actor.info.pid = running.pid;
  actor.info.endpoint = node.info.endpoint;
  if (running.ready && actor.info.state == wire::ActorState::kStarting) runs(actor);
  changed(actor);
}

// --- its process ends ----------------------------------------------------------------------------

Status Actors::exited(const NodeRecord& node, const ActorRecord& record,
                      const wire::ActorExited& report) {
  ActorRecord& actor = edit(record);
  // Where there was a process, and it ended by itself or was killed in its time.
  if (report.cause.ok()) actor.exit = report.exit;
  actor.info.calls_dropped = report.calls_dropped;
  Status cause = death_of(actor, node.info.name, report);
  if (refused_to_begin(actor, report)) {
    actor.stopping = true;
    actor.restart_after_stop = false;
    actor.info.death = cause;
  } else if (lost_its_state(node, actor, report)) {
    lose_state(actor, actor.info.generation + 1);
    // No process of it has failed: the next start, which is told of the loss, costs no restart.
    actor.moving = actor.barrier.empty();
  }
  return cause;
}

bool Actors::process_gone(const ActorRecord& record, Status& cause, Duration restart_delay) {
  ActorRecord& actor = edit(record);
  const bool wanted = !actor.stopping || actor.restart_after_stop;
  if (actor.stopping && !actor.info.death.ok()) cause = actor.info.death;
  actor.info.pid = 0;
  actor.started = false;
  actor.stopping = false;
  actor.restart_after_stop = false;
  if (!wanted || context_.stopping()) {
    bury(actor, cause);
    return false;
  }
  ended_owners_.emplace_back(actor.id(), actor.info.generation);
  if (actor.barrier.empty() && std::exchange(actor.moving, false)) {
    await_restart(actor, cause, restart_delay, "actor_moving");
    return false;
  }
  if (!actor.spec.supervisor.empty()) {
    actor.not_before = context_.now() + restart_delay;
    await_restart(actor, cause, std::nullopt);
    return true;
  }
  const wire::RestartPolicy& policy = actor.spec.restart;
  if (may_restart(policy, context_.unix_us(), actor.restarts_unix_us)) {
    const Duration wait = back_off(policy, actor.restarts_unix_us.size());
    actor.restarts_unix_us.push_back(context_.unix_us());
    await_restart(actor, cause, std::max(wait, restart_delay));
    return false;
  }
  if (policy.max_restarts > 0) {
    const std::string window =
        policy.window_ms > 0 ? fmt::format(" within {} ms", policy.window_ms) : "";
    cause = error(Code::kActorDied, "{} (it had used its {} restarts{})", cause.message(),
                  policy.max_restarts, window);
  }
  bury(actor, cause);
  return false;
}

// It gets another process, after `wait`; without one, when its supervisor says so.
void Actors::await_restart(ActorRecord& actor, const Status& cause, std::optional<Duration> wait,
                           const char* event) {
  actor.info.state = wire::ActorState::kRestarting;
  actor.info.restarts += 1;
  actor.info.death = clipped(cause, kLivingTextBytes);
  // Its place is kept for the next process, unless the node takes nothing new, or the bundle is
  // there no more.
  if (!has_place(actor)) free_lease_of(actor);
  std::string when = "with its group";
  if (wait) {
    restart_at(actor, context_.now() + *wait);
    when = fmt::format("in {} ms",
                       std::chrono::duration_cast<std::chrono::milliseconds>(*wait).count());
  }
  context_.log(event, actor.subject(), "{}; restart {} {}", cause.message(), actor.info.restarts,
               when);
  changed(actor);
}

void Actors::restart_at(ActorRecord& actor, TimePoint at) {
  actor.restart_at = at;
  context_.arm(at, TimerKind::kActor, actor.id());
}

void Actors::back_off_over(const Timer& timer) {
  const auto found = records_.find(timer.id<ActorId>());
  if (found == records_.end()) return;
  ActorRecord& actor = found->second;
  if (!actor.restart_at || *actor.restart_at > context_.now()) return;
  actor.restart_at.reset();
  const bool kept = has_place(actor);
  free_lease_of(actor);
  // Takes at once what was just freed.
  if (kept) return start_on(actor, nodes_.at(actor.info.node_id), actor.info.bundle_index);
  enqueue(actor, context_.next_order());
}

void Actors::drained(const ActorRecord& actor) {
  if (actor.barrier.empty()) will_move(actor);
  changed(actor);
}

bool Actors::has_place(const ActorRecord& actor) const {
  const NodeRecord* node = nodes_.find(actor.info.node_id);
  if (actor.lease_generation == 0 || node == nullptr || !node->usable()) return false;
  if (node->lost_some(actor.spec.resources)) return false;
  return !actor.in_group() || node->inside.contains(actor.lease());
}

void Actors::free_lease_of(const ActorRecord& actor) {
  if (actor.lease_generation == 0) return;
  const NodeRecord* node = nodes_.find(actor.info.node_id);
  if (node != nullptr) nodes_.free_lease(*node, actor.lease());
  lost_lease(actor);
}

void Actors::leave_group(const ActorRecord& actor) {
  erase_member(grouped_, actor.spec.placement_group, actor.id());
}

void Actors::lost_lease(const ActorRecord& actor) {
  edit(actor).lease_generation = 0;
  changed(actor);
}

// --- restarts of several together ----------------------------------------------------------------

void Actors::join_barrier(const SupervisorRecord& supervisor, const ActorRecord& record) {
  ActorRecord& actor = edit(record);
  leave_barrier(actor);
  actor.barrier = supervisor.id();
  actor.moving = false;
  supervisors_.joins_barrier(actor.barrier, actor.id());
  changed(actor);
  if (actor.has_process()) return;
  dequeue(actor);
  actor.restart_at.reset();
}

void Actors::leave_barrier(const ActorRecord& actor) {
  if (actor.barrier.empty()) return;
  supervisors_.leaves_barrier(actor.barrier, actor.id());
  edit(actor).barrier = {};
  changed(actor);
}

void Actors::release_barrier(SupervisorId id) {
  const SupervisorRecord* supervisor = supervisors_.find(id);
  if (supervisor == nullptr || supervisor->info.state != wire::SupervisorState::kRestarting) return;
  for (const ActorId& actor : supervisor->restarting) {
    if (at(actor).has_process()) return;
  }
  const std::size_t restarts = supervisor->restarts_unix_us.size();
  const TimePoint next =
      context_.now() + back_off(supervisor->spec.restart, restarts > 0 ? restarts - 1 : 0);
  for (const ActorId& actor_id : supervisors_.open_barrier(*supervisor)) {
    ActorRecord& actor = records_.at(actor_id);
    actor.barrier = {};
    restart_at(actor, std::max(next, actor.not_before));
    changed(actor);
  }
}

// --- it ends -------------------------------------------------------------------------------------

void Actors::bury(const ActorRecord& record, Status death) {
  ActorRecord& actor = edit(record);
  free_lease_of(actor);
  dequeue(actor);
  actor.restart_at.reset();
  actor.stopping = false;
  actor.restart_after_stop = false;
  actor.info.state = wire::ActorState::kDead;
  const bool typed = death.code() == Code::kActorDied || death.code() == Code::kAborted;
  actor.info.death = clipped(typed ? std::move(death) : Status(Code::kActorDied, death.to_string()),
                             kDeathTextBytes);
  release_name(actor);
  erase_member(owned_, actor.spec.owner_actor, actor.id());
  leave_group(actor);
  ended_owners_.emplace_back(actor.id(), 0);
  if (supervisors_.leave(actor)) {
    const SupervisorId barrier = actor.barrier;
    leave_barrier(actor);
    release_barrier(barrier);
  }
  context_.log("actor_died", actor.subject(), "{}", actor.info.death.message());
  changed(actor);
  room_.let_go(actor);
  actor.kept_bytes = 0;
  actor.spec = JournalRoom::remembered(actor.spec);
  ended_.add(actor.id(), JournalRoom::left_by(actor));
}

void Actors::end(const ActorRecord& record, bool allow_restart, std::int64_t grace_ms,
                 const std::string& reason, bool drain) {
  ActorRecord& actor = edit(record);
  if (actor.dead()) return;
  if (actor.has_process()) {
    actor.restart_after_stop = allow_restart && (!actor.stopping || actor.restart_after_stop);
    actor.stopping = true;
    if (!actor.restart_after_stop) release_name(actor);  // another one may take it at once
    actor.info.death = clipped(error(Code::kActorDied, "{} was ended: {}", describe(actor), reason),
                               kLivingTextBytes);
    changed(actor);
    const NodeRecord* node = nodes_.find(actor.info.node_id);
    if (node == nullptr || node->peer == 0) return;  // the node is told when it comes back
    return context_.send(node->peer, wire::StopActor{actor.id(), actor.info.generation, grace_ms,
                                                     reason, actor.restart_after_stop, drain});
  }
  if (allow_restart) return;  // it waits for a new process already
  // A gang is placed whole or not at all: without this member it never will be.
  std::vector<ActorId> others;
  if (actor.info.state == wire::ActorState::kPending && actor.gang != 0) {
    const QueueEntry* entry = line_.find(key_of(actor));
    if (entry != nullptr) others = entry->members;
  }
  const std::string who = describe(actor);
  bury(actor,
       error(Code::kActorDied, "{} was ended {}: {}", who,
             actor.info.generation == 0 ? "before it ran" : "before its next process", reason));
  for (const ActorId& id : others) {
    const ActorRecord& other = at(id);
    if (other.dead()) continue;
    bury(other, error(Code::kAborted, "{} waited together with {}, which was ended: {}",
                      describe(other), who, reason));
  }
}

void Actors::end_all(const std::vector<ActorId>& ids, const std::string& reason) {
  for (const ActorId& id : ids) end(at(id), false, 0, reason);
}

}  // namespace troupe::scheduler

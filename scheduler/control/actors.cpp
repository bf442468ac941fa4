// An actor's life: created, placed, started, ready, gone, restarted within its budget, dead.

#include <algorithm>

#include "scheduler/control/head_state.h"
#include "scheduler/control/journal_bytes.h"

namespace troupe::scheduler {
namespace {

// Of an actor's last output in the message of its death: enough for a stack trace, little to send.
constexpr std::size_t kDeathLogBytesMax = 2048;
// Restarts that the back-off of an actor without a limit looks at.
constexpr std::size_t kRestartsRememberedMax = 64;
// A back-off, however long one was asked for.
constexpr std::int64_t kBackOffMsMax = 24 * 3'600'000;

}  // namespace

Status HeadState::death_of(const ActorRecord& actor, const std::string& node,
                           const wire::ActorExited& exited) {
  std::string text = fmt::format("{} on node {} ", describe(actor), node);
  if (exited.constructor_failed) {
    text += fmt::format("failed in its constructor: {}", exited.cause.to_string());
  } else if (exited.cause.code() == Code::kAborted) {
    text += fmt::format("ended: {}", exited.cause.message());
  } else if (!exited.cause.ok()) {
    text += fmt::format("could not be started: {}", exited.cause.to_string());
  } else {
    text += fmt::format("ended: {}", exited.exit.to_string());
  }
  if (!exited.log_tail.empty()) {
    std::string_view tail = exited.log_tail;
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
  return death;
}

std::string HeadState::describe(const ActorRecord& actor) {
  const std::string rank = actor.spec.rank >= 0 ? fmt::format(" rank {}", actor.spec.rank) : "";
  return actor.spec.name.empty()
             ? fmt::format("{}{} {}", actor.spec.type, rank, actor.spec.actor_id.brief())
             : fmt::format("{}{} '{}'", actor.spec.type, rank, actor.spec.name);
}

void HeadState::create(wire::ActorSpec spec, std::uint64_t gang) {
  ActorRecord& actor = actors_[spec.actor_id];
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
  actor.info.supervisor = spec.supervisor;
  actor.spec = std::move(spec);
  if (actor.in_group()) groups_.at(actor.spec.placement_group).actors.insert(actor.spec.actor_id);
  if (!actor.spec.name.empty()) living_names_[name_of(actor.spec)] = actor.spec.actor_id;
  own(actor);
  join_supervisor(actor);
  ++living_count_;
  kept_bytes_ += kept_by(actor.spec);
  deltas_.push_back(ActorCreated{actor.spec, gang});
  log_event("actor_created", {}, actor.spec.actor_id, 0,
            fmt::format("{} created", describe(actor)));
  changed(actor);
}

// The actor of a node's report, if the report is about its present process.
ActorRecord* HeadState::current(PeerId peer, ActorId actor_id, std::uint64_t generation) {
  const NodeRecord* node = node_of(peer);
  const auto found = actors_.find(actor_id);
  if (node == nullptr || found == actors_.end()) return nullptr;
  ActorRecord& actor = found->second;
  const bool same = actor.has_process() && actor.info.generation == generation &&
                    actor.info.node_id == node->info.node_id;
  return same ? &actor : nullptr;
}

void HeadState::on(PeerId peer, wire::ActorStarted& message) {
  ActorRecord* actor = current(peer, message.actor_id, message.generation);
  if (actor == nullptr) return;
  actor->started = true;
  actor->info.pid = message.pid;
  actor->info.calls_dropped = -1;
  changed(*actor);
}

void HeadState::on(PeerId peer, wire::ActorReady& message) {
  ActorRecord* actor = current(peer, message.actor_id, message.generation);
  if (actor == nullptr || actor->info.state != wire::ActorState::kStarting) return;
  actor->info.state = wire::ActorState::kAlive;
  if (!actor->stopping) actor->info.death = {};
  log_event("actor_alive", actor->info.node_id, actor->spec.actor_id, actor->info.generation,
            fmt::format("{} is ready (pid {})", describe(*actor), actor->info.pid));
  changed(*actor);
}

// What the node says of the end of the actor's present process.
void HeadState::process_exited(NodeRecord& node, ActorRecord& actor,
                               const wire::ActorExited& exited) {
  // Where there was a process, and it ended by itself or was killed in its time.
  if (exited.cause.ok()) actor.exit = exited.exit;
  actor.info.calls_dropped = exited.calls_dropped;
  const Status cause = death_of(actor, node.info.name, exited);
  if (refused_to_begin(actor, exited)) {
    // The next process would refuse, too.
    actor.stopping = true;
    actor.restart_after_stop = false;
    actor.info.death = cause;
  } else if (lost_its_state(node, actor, exited)) {
    lose_state(actor, actor.info.generation + 1);
    // No process of it has failed: the next start, which is told of the loss, costs no restart.
    actor.moving = actor.barrier.empty();
  }
  process_gone(actor, cause, Duration::zero());
}

void HeadState::on(PeerId peer, wire::ActorExited& message) {
  NodeRecord* node = node_of(peer);
  if (node == nullptr) return;
  if (ActorRecord* actor = current(peer, message.actor_id, message.generation)) {
    return process_exited(*node, *actor, message);
  }
  // A process that nobody wanted any more. A place that is kept for a next process stays kept.
  const auto found = actors_.find(message.actor_id);
  const bool kept = found != actors_.end() &&
                    found->second.lease_generation == message.generation &&
                    found->second.info.node_id == node->info.node_id;
  if (!kept) free_lease(*node, {message.actor_id, message.generation});
}

bool HeadState::may_restart(const wire::RestartPolicy& policy,
                            std::vector<std::int64_t>& restarts) const {
  // A window that began before the calendar's first day forgets nothing.
  if (policy.window_ms > 0 && policy.window_ms < now_.unix_us / 1000) {
    const std::int64_t oldest = now_.unix_us - policy.window_ms * 1000;
    std::erase_if(restarts, [&](std::int64_t time) { return time < oldest; });
  }
  if (policy.max_restarts < 0) {
    if (restarts.size() > kRestartsRememberedMax) restarts.erase(restarts.begin());
    return true;
  }
  return restarts.size() < static_cast<std::size_t>(policy.max_restarts);
}

// Doubles with each restart that still counts.
Duration HeadState::back_off(const wire::RestartPolicy& policy, std::size_t restarts) {
  const std::size_t doublings = std::min<std::size_t>(restarts, 30);
  const std::int64_t initial = std::clamp<std::int64_t>(policy.backoff_initial_ms, 0, 1'000'000);
  const std::int64_t longest = std::clamp<std::int64_t>(policy.backoff_max_ms, 0, kBackOffMsMax);
  return std::chrono::milliseconds(std::min(initial << doublings, longest));
}

// Its process group is gone, or its node is (then lease_generation is 0 already).
void HeadState::process_gone(ActorRecord& actor, Status cause, Duration restart_delay) {
  const bool wanted = !actor.stopping || actor.restart_after_stop;
  if (actor.stopping && !actor.info.death.ok()) cause = actor.info.death;
  actor.info.pid = 0;
  actor.started = false;
  actor.stopping = false;
  actor.restart_after_stop = false;
  if (!wanted || stopping()) return bury(actor, std::move(cause));
  owner_ended(actor, false);
  if (actor.barrier.empty() && std::exchange(actor.moving, false)) {
    return await_restart(actor, cause, restart_delay, "actor_moving");
  }
  if (!actor.spec.supervisor.empty()) return supervised_gone(actor, cause, restart_delay);
  if (!may_restart(actor.spec.restart, actor.restarts_unix_us)) {
    const wire::RestartPolicy& policy = actor.spec.restart;
    if (policy.max_restarts > 0) {
      const std::string window =
          policy.window_ms > 0 ? fmt::format(" within {} ms", policy.window_ms) : "";
      cause = error(Code::kActorDied, "{} (it had used its {} restarts{})", cause.message(),
                    policy.max_restarts, window);
    }
    return bury(actor, std::move(cause));
  }
  const Duration wait =
      std::max(back_off(actor.spec.restart, actor.restarts_unix_us.size()), restart_delay);
  actor.restarts_unix_us.push_back(now_.unix_us);
  await_restart(actor, cause, wait);
}

// It gets another process, after `wait`; without one, when its supervisor says so.
void HeadState::await_restart(ActorRecord& actor, const Status& cause, std::optional<Duration> wait,
                              const char* event) {
  actor.info.state = wire::ActorState::kRestarting;
  actor.info.restarts += 1;
  actor.info.death = clipped(cause, kLivingTextBytes);
  // Its place is kept for the next process, unless the node takes nothing new, or the bundle is
  // there no more.
  if (!has_place(actor)) free_lease_of(actor);
  std::string when = "with its group";
  if (wait) {
    actor.restart_at = now_.steady + *wait;
    arm(*actor.restart_at, TimerKind::kActor, actor.spec.actor_id.high, actor.spec.actor_id.low);
    when = fmt::format("in {} ms",
                       std::chrono::duration_cast<std::chrono::milliseconds>(*wait).count());
  }
  log_event(event, actor.info.node_id, actor.spec.actor_id, actor.info.generation,
            fmt::format("{}; restart {} {}", cause.message(), actor.info.restarts, when));
  changed(actor);
}

// Whether a next process may take over the lease that the actor holds.
bool HeadState::has_place(const ActorRecord& actor) const {
  const auto node = nodes_.find(actor.info.node_id);
  if (actor.lease_generation == 0 || node == nodes_.end() || !node->second.usable()) return false;
  if (lost_some(node->second, actor.spec.resources)) return false;
  return !actor.in_group() ||
         node->second.inside.contains({actor.spec.actor_id, actor.lease_generation});
}

void HeadState::back_off_over(ActorRecord& actor) {
  actor.restart_at.reset();
  const bool kept = has_place(actor);
  free_lease_of(actor);
  // Takes at once what was just freed.
  if (kept) return start_on(actor, nodes_.at(actor.info.node_id));
  enqueue(actor, next_order_++);
}

void HeadState::bury(ActorRecord& actor, Status death) {
  const ActorId id = actor.spec.actor_id;
  free_lease_of(actor);
  dequeue(actor);
  actor.restart_at.reset();
  actor.stopping = false;
  actor.restart_after_stop = false;
  actor.info.state = wire::ActorState::kDead;
  const bool typed = death.code() == Code::kActorDied || death.code() == Code::kAborted;
  actor.info.death = clipped(typed ? std::move(death) : Status(Code::kActorDied, death.to_string()),
                             kDeathTextBytes);
  --living_count_;
  release_name(actor);
  disown(actor);
  owner_ended(actor, true);
  leave_supervisor(actor);
  log_event("actor_died", actor.info.node_id, id, actor.info.generation,
            actor.info.death.message());
  changed(actor);
  const auto group = groups_.find(actor.spec.placement_group);
  if (group != groups_.end()) group->second.actors.erase(id);
  let_go(kept_by(actor.spec));
  actor.spec = remembered(actor.spec);
  remember(actor);
}

// At the end of an apply(), when everybody has heard of the newest deaths.
void HeadState::forget_old_actors() {
  while (dead_actors_.too_many(config_.dead_actors_max, config_.ended_bytes_max)) {
    const ActorId oldest = dead_actors_.oldest();
    dead_actors_.erase(oldest);
    actors_.erase(oldest);
    deltas_.push_back(ActorForgotten{oldest});
  }
}

void HeadState::end_actor(ActorRecord& actor, bool allow_restart, std::int64_t grace_ms,
                          const std::string& reason, bool drain) {
  if (actor.dead()) return;
  if (actor.has_process()) {
    actor.restart_after_stop = allow_restart && (!actor.stopping || actor.restart_after_stop);
    actor.stopping = true;
    if (!actor.restart_after_stop) release_name(actor);  // another one may take it at once
    actor.info.death = clipped(error(Code::kActorDied, "{} was ended: {}", describe(actor), reason),
                               kLivingTextBytes);
    changed(actor);
    const auto node = nodes_.find(actor.info.node_id);
    if (node != nodes_.end() && node->second.peer != 0) {
      send(node->second.peer, wire::StopActor{actor.spec.actor_id, actor.info.generation, grace_ms,
                                              reason, actor.restart_after_stop, drain});
    }
    return;  // else the node is told when it comes back
  }
  if (allow_restart) return;  // it waits for a new process already
  // A gang is placed whole or not at all: without this member it never will be.
  std::vector<ActorId> others;
  if (actor.info.state == wire::ActorState::kPending && actor.gang != 0) {
    const auto entry = queue_.find(key_of(actor));
    if (entry != queue_.end()) others = entry->second.members;
  }
  const std::string who = describe(actor);
  bury(actor,
       error(Code::kActorDied, "{} was ended {}: {}", who,
             actor.info.generation == 0 ? "before it ran" : "before its next process", reason));
  for (const ActorId& id : others) {
    ActorRecord& other = actors_.at(id);
    if (other.dead()) continue;
    bury(other, error(Code::kAborted, "{} waited together with {}, which was ended: {}",
                      describe(other), who, reason));
  }
}

}  // namespace troupe::scheduler

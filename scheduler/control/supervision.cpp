// Supervisors: groups of actors, and of further groups, that are restarted by one rule.
//
// Where a member's process is gone, the group's strategy says who gets a new one: their processes
// are stopped, and when the last of them is gone (the barrier), all start anew, after the group's
// back-off. Where that was needed too often in the group's window, it gives up: to its parent that
// is a failure of one member, whose restart is that of the whole group; where it has no parent, the
// group and everything in it ends. A member that was ended on purpose has left.

#include <algorithm>

#include "runtime/base/check.h"
#include "scheduler/control/head_state.h"
#include "scheduler/control/journal_bytes.h"

namespace troupe::scheduler {

std::string HeadState::describe(const SupervisorRecord& supervisor) {
  return supervisor.spec.name.empty()
             ? fmt::format("supervisor {}", supervisor.spec.supervisor_id.brief())
             : fmt::format("supervisor '{}'", supervisor.spec.name);
}

void HeadState::changed(SupervisorRecord& supervisor) {
  changed_supervisors_.insert(supervisor.spec.supervisor_id);
}

wire::SupervisorInfo HeadState::visible(const SupervisorRecord& supervisor) const {
  wire::SupervisorInfo info = supervisor.info;
  for (const auto& [order, member] : supervisor.members) info.members.push_back(member);
  return info;
}

// --- made and asked about ------------------------------------------------------------------------

Status HeadState::check_supervisor(const wire::SupervisorSpec& spec) const {
  if (stopping()) return Status(Code::kFailedPrecondition, "the cluster is stopping");
  if (spec.supervisor_id.empty()) {
    return Status(Code::kInvalidArgument, "a supervisor without an id");
  }
  if (living_supervisors_ >= config_.supervisors_max) {
    return error(Code::kOverloaded, "the cluster has {} supervisors; its limit is {}",
                 living_supervisors_, config_.supervisors_max);
  }
  TROUPE_RETURN_IF_ERROR(check_owner(spec.owner_actor, spec.owner_generation, spec.detached));
  if (spec.parent.empty()) return {};
  const auto parent = supervisors_.find(spec.parent);
  if (parent == supervisors_.end()) {
    return error(Code::kNotFound, "there is no supervisor {} that could be its parent",
                 spec.parent.brief());
  }
  if (parent->second.ended()) {
    return error(Code::kFailedPrecondition, "{}, which is to be its parent, has ended: {}",
                 describe(parent->second), parent->second.info.why.message());
  }
  if (spec.detached && !parent->second.spec.detached) {
    return error(Code::kInvalidArgument,
                 "a detached supervisor under {}, which is not: it would end with it",
                 describe(parent->second));
  }
  return {};
}

void HeadState::on(PeerId peer, wire::CreateSupervisor& message) {
  const ClientRecord* client = client_of(peer);
  if (client == nullptr) {
    return reply(peer, message.request_id,
                 Status(Code::kFailedPrecondition, "only a client creates supervisors"));
  }
  wire::SupervisorSpec& spec = message.spec;
  // The same request again, after a reconnection: it is done.
  if (supervisors_.contains(spec.supervisor_id)) return reply(peer, message.request_id, {});
  Status status = check_supervisor(spec);
  if (status.ok()) status = check_room(kept_by(spec));
  const bool good = status.ok();
  reply(peer, message.request_id, std::move(status));
  if (!good) return;
  if (!clients_.contains(spec.owner)) spec.owner = client->client_id;
  if (spec.job_id.empty()) spec.job_id = client->job_id;
  spec.order = next_order_++;
  if (!spec.parent.empty()) {
    SupervisorRecord& parent = supervisors_.at(spec.parent);
    parent.members[spec.order] = {{}, spec.supervisor_id};
    changed(parent);
  }
  SupervisorRecord& supervisor = supervisors_[spec.supervisor_id];
  supervisor.info.supervisor_id = spec.supervisor_id;
  supervisor.info.name = spec.name;
  supervisor.info.strategy = spec.strategy;
  supervisor.info.parent = spec.parent;
  supervisor.info.job_id = spec.job_id;
  supervisor.info.owner_name = clipped(owner_name(spec.owner, spec.owner_actor), kOwnerBytes);
  supervisor.spec = std::move(spec);
  ++living_supervisors_;
  kept_bytes_ += kept_by(supervisor.spec);
  deltas_.push_back(SupervisorCreated{supervisor.spec});
  changed(supervisor);
}

void HeadState::on(PeerId peer, wire::EndSupervisor& message) {
  const auto found = supervisors_.find(message.supervisor_id);
  if (found == supervisors_.end()) {
    return reply(
        peer, message.request_id,
        error(Code::kNotFound, "there is no supervisor {}", message.supervisor_id.to_string()));
  }
  reply(peer, message.request_id, {});
  end_supervisor(found->second,
                 Status(Code::kCancelled,
                        message.reason.empty() ? "it was ended on request" : message.reason));
}

void HeadState::on(PeerId peer, wire::WatchSupervisor& message) {
  const SupervisorId id = message.supervisor_id;
  const auto found = supervisors_.find(id);
  if (found == supervisors_.end()) {
    return reply(peer, message.request_id,
                 error(Code::kNotFound, "there is no supervisor {}", id.to_string()));
  }
  reply(peer, message.request_id, {});
  if (message.stop) {
    found->second.watchers.erase(peer);
    peers_[peer].watched_supervisors.erase(id);
    return;
  }
  if (!found->second.ended()) {
    found->second.watchers.insert(peer);
    peers_[peer].watched_supervisors.insert(id);
  }
  send(peer, wire::SupervisorUpdate{visible(found->second)});
}

void HeadState::on(PeerId peer, wire::ListSupervisors& message) {
  wire::SupervisorList list{message.request_id, {}};
  for (const auto& [id, supervisor] : supervisors_) {
    if (message.include_ended || !supervisor.ended()) {
      list.supervisors.push_back(visible(supervisor));
    }
  }
  send(peer, std::move(list));
}

void HeadState::forget_old_supervisors() {
  while (ended_supervisors_.too_many(config_.ended_supervisors_max, config_.ended_bytes_max)) {
    const SupervisorId oldest = ended_supervisors_.oldest();
    const auto found = supervisors_.find(oldest);
    if (!found->second.members.empty()) break;  // they are being stopped
    ended_supervisors_.erase(oldest);
    supervisors_.erase(found);
    deltas_.push_back(SupervisorForgotten{oldest});
  }
}

// --- members -------------------------------------------------------------------------------------

Status HeadState::check_supervised(const wire::ActorSpec& spec) const {
  if (spec.supervisor.empty()) return {};
  const auto found = supervisors_.find(spec.supervisor);
  if (found == supervisors_.end()) {
    return error(Code::kNotFound, "there is no supervisor {}", spec.supervisor.to_string());
  }
  const SupervisorRecord& supervisor = found->second;
  if (supervisor.ended()) {
    return error(Code::kFailedPrecondition, "{} has ended: {}", describe(supervisor),
                 supervisor.info.why.message());
  }
  if (spec.restart.max_restarts != 0) {
    return error(Code::kInvalidArgument,
                 "{} decides about restarts of its members: leave max_restarts of {} at 0",
                 describe(supervisor), spec.type);
  }
  if (spec.detached && !supervisor.spec.detached) {
    return error(Code::kInvalidArgument,
                 "a detached {} under {}, which is not: it would end with it", spec.type,
                 describe(supervisor));
  }
  return {};
}

void HeadState::join_supervisor(ActorRecord& actor) {
  if (actor.spec.supervisor.empty()) return;
  // So that nodes keep what it saved: its supervisor may start it again.
  actor.spec.restart.max_restarts = -1;
  actor.spec.supervisor_order = next_order_++;
  SupervisorRecord& supervisor = supervisors_.at(actor.spec.supervisor);
  supervisor.members[actor.spec.supervisor_order] = {actor.spec.actor_id, {}};
  changed(supervisor);
}

void HeadState::leave_supervisor(ActorRecord& actor) {
  const auto found = supervisors_.find(actor.spec.supervisor);
  if (found == supervisors_.end()) return;
  if (found->second.members.erase(actor.spec.supervisor_order) != 0) changed(found->second);
  const SupervisorId barrier = actor.barrier;
  leave_barrier(actor);
  release_barrier(barrier);
}

void HeadState::leave_barrier(ActorRecord& actor) {
  const auto barrier = supervisors_.find(std::exchange(actor.barrier, {}));
  if (barrier == supervisors_.end()) return;
  barrier->second.restarting.erase(actor.spec.actor_id);
  changed(actor);
}

// All actors of a member, those of a group with it and in its order.
void HeadState::collect_actors(const wire::SupervisorMember& member, std::vector<ActorId>& actors,
                               bool forget_restarts) {
  if (member.supervisor.empty()) return actors.push_back(member.actor);
  SupervisorRecord& group = supervisors_.at(member.supervisor);
  if (forget_restarts && !group.restarts_unix_us.empty()) {
    group.restarts_unix_us.clear();  // it begins anew
    changed(group);
  }
  for (const auto& [order, inner] : group.members) collect_actors(inner, actors, forget_restarts);
}

bool HeadState::is_within(SupervisorId inner, SupervisorId outer) const {
  while (inner != outer) {
    const auto found = supervisors_.find(inner);
    if (found == supervisors_.end()) return false;
    inner = found->second.spec.parent;
  }
  return true;
}

// --- failures ------------------------------------------------------------------------------------

void HeadState::supervised_gone(ActorRecord& actor, const Status& cause, Duration restart_delay) {
  actor.not_before = now_.steady + restart_delay;
  await_restart(actor, cause, std::nullopt);
  if (!actor.barrier.empty()) return release_barrier(actor.barrier);
  member_failed(actor.spec.supervisor, actor.spec.supervisor_order, cause);
}

void HeadState::member_failed(SupervisorId id, std::uint64_t order, Status cause) {
  for (;;) {
    SupervisorRecord& supervisor = supervisors_.at(id);
    const wire::RestartPolicy& policy = supervisor.spec.restart;
    changed(supervisor);
    // What dies together, with its node, is one failure.
    if (counted_.contains(id) || may_restart(policy, supervisor.restarts_unix_us)) {
      supervisor.info.why = clipped(cause, kLivingTextBytes);
      return restart_members(supervisor, order, cause);
    }
    const std::string window =
        policy.window_ms > 0 ? fmt::format(" within {} ms", policy.window_ms) : "";
    cause = error(Code::kAborted, "{} gave up after {} restarts{}: {}", describe(supervisor),
                  policy.max_restarts, window, cause.message());
    const SupervisorId parent = supervisor.spec.parent;
    if (parent.empty()) return end_supervisor(supervisor, std::move(cause));
    supervisor.info.why = clipped(cause, kLivingTextBytes);
    log_event("supervisor_escalated", {}, {}, 0, cause.message());
    order = supervisor.spec.order;
    id = parent;
  }
}

void HeadState::restart_members(SupervisorRecord& supervisor, std::uint64_t failed,
                                const Status& cause) {
  const SupervisorId id = supervisor.spec.supervisor_id;
  if (counted_.insert(id).second) {
    supervisor.restarts_unix_us.push_back(now_.unix_us);
    ++supervisor.info.restarts;
  }
  supervisor.info.state = wire::SupervisorState::kRestarting;
  std::vector<ActorId> actors;
  for (const auto& [order, member] : supervisor.members) {
    const bool affected =
        order == failed || supervisor.spec.strategy == wire::RestartStrategy::kAllForOne ||
        (supervisor.spec.strategy == wire::RestartStrategy::kRestForOne && order > failed);
    if (affected) collect_actors(member, actors, true);
  }
  const std::string reason =
      fmt::format("{} restarts it with others: {}", describe(supervisor), cause.message());
  log_event("supervisor_restarting", {}, {}, 0,
            fmt::format("{} restarts {} actors: {}", describe(supervisor), actors.size(),
                        cause.message()));
  for (const ActorId& actor_id : actors) {
    ActorRecord& actor = actors_.at(actor_id);
    // One that has not begun needs no new beginning.
    if (actor.ending() || actor.info.state == wire::ActorState::kPending) continue;
    if (!actor.barrier.empty()) {
      if (!is_within(actor.barrier, id)) continue;  // a larger restart is under way
      leave_barrier(actor);
    }
    actor.barrier = id;
    actor.moving = false;
    supervisor.restarting.insert(actor_id);
    changed(actor);
    if (actor.has_process()) {
      if (!actor.stopping) end_actor(actor, true, supervisor.spec.grace_ms, reason);
    } else {
      dequeue(actor);
      actor.restart_at.reset();
    }
  }
  // Groups inside whose own restart this one has swallowed.
  for (auto& [inner_id, inner] : supervisors_) {
    if (inner.info.state == wire::SupervisorState::kRestarting && inner.restarting.empty()) {
      release_barrier(inner_id);
    }
  }
  release_barrier(id);
}

// When the last process of those that are restarted together is gone, all get their next ones.
void HeadState::release_barrier(SupervisorId id) {
  const auto found = supervisors_.find(id);
  if (found == supervisors_.end()) return;
  SupervisorRecord& supervisor = found->second;
  if (supervisor.info.state != wire::SupervisorState::kRestarting) return;
  for (const ActorId& actor : supervisor.restarting) {
    if (actors_.at(actor).has_process()) return;
  }
  const std::size_t restarts = supervisor.restarts_unix_us.size();
  const TimePoint at =
      now_.steady + back_off(supervisor.spec.restart, restarts > 0 ? restarts - 1 : 0);
  for (const ActorId& actor_id : std::exchange(supervisor.restarting, {})) {
    ActorRecord& actor = actors_.at(actor_id);
    actor.barrier = {};
    actor.restart_at = std::max(at, actor.not_before);
    arm(*actor.restart_at, TimerKind::kActor, actor_id.high, actor_id.low);
    changed(actor);
  }
  supervisor.info.state = wire::SupervisorState::kRunning;
  changed(supervisor);
}

void HeadState::end_supervisors(const std::vector<SupervisorId>& ids, const std::string& reason) {
  for (const SupervisorId& id : ids) {
    end_supervisor(supervisors_.at(id), Status(Code::kCancelled, reason));
  }
}

// For good, and with it every member.
void HeadState::end_supervisor(SupervisorRecord& supervisor, Status why) {
  if (supervisor.ended()) return;
  supervisor.info.state = wire::SupervisorState::kEnded;
  supervisor.info.why = clipped(std::move(why), kLivingTextBytes);
  --living_supervisors_;
  let_go(kept_by(supervisor.spec));
  remember(supervisor);
  changed(supervisor);
  log_event("supervisor_ended", {}, {}, 0,
            fmt::format("{} ended with its {} members: {}", describe(supervisor),
                        supervisor.members.size(), supervisor.info.why.message()));
  const std::string reason =
      supervisor.info.why.code() == Code::kAborted
          ? supervisor.info.why.message()
          : fmt::format("{} ended: {}", describe(supervisor), supervisor.info.why.message());
  if (const auto parent = supervisors_.find(supervisor.spec.parent);
      parent != supervisors_.end() && parent->second.members.erase(supervisor.spec.order) != 0) {
    changed(parent->second);
  }
  std::vector<ActorId> actors;
  std::vector<SupervisorId> groups;
  for (const auto& [order, member] : supervisor.members) {
    if (member.supervisor.empty()) {
      actors.push_back(member.actor);
    } else {
      groups.push_back(member.supervisor);
    }
  }
  end_supervisors(groups, reason);
  // Out of every barrier first, so that none of them gets another process meanwhile.
  for (const ActorId& actor : actors) {
    ActorRecord& member = actors_.at(actor);
    const SupervisorId barrier = member.barrier;
    leave_barrier(member);
    if (!member.has_process() && !barrier.empty()) member.restart_at = now_.steady;
    release_barrier(barrier);
  }
  for (const ActorId& actor : actors) {
    end_actor(actors_.at(actor), false, supervisor.spec.grace_ms, reason);
  }
}

// --- a head that comes back ----------------------------------------------------------------------

void HeadState::resume_supervisors() {
  for (auto& [id, supervisor] : supervisors_) {
    if (supervisor.ended()) continue;
    ++living_supervisors_;
    kept_bytes_ += kept_by(supervisor.spec);
    if (!supervisor.spec.detached && supervisor.spec.owner_actor.empty()) {
      resume_owner(supervisor.spec.owner, supervisor.spec.job_id);
    }
    const auto parent = supervisors_.find(supervisor.spec.parent);
    if (parent != supervisors_.end()) {
      parent->second.members[supervisor.spec.order] = {{}, id};
    }
  }
  std::vector<ActorId> orphans;
  for (auto& [id, actor] : actors_) {
    if (actor.dead() || actor.spec.supervisor.empty()) continue;
    const auto supervisor = supervisors_.find(actor.spec.supervisor);
    if (supervisor == supervisors_.end() || supervisor->second.ended()) orphans.push_back(id);
    if (supervisor == supervisors_.end()) continue;
    supervisor->second.members[actor.spec.supervisor_order] = {id, {}};
    const auto barrier = supervisors_.find(actor.barrier);
    if (barrier == supervisors_.end() || barrier->second.ended()) {
      actor.barrier = {};
    } else {
      barrier->second.restarting.insert(id);
      barrier->second.info.state = wire::SupervisorState::kRestarting;
      actor.not_before = now_.steady + config_.rejoin_grace;
    }
  }
  // The journal ends in the middle of an end, or of a restart.
  std::vector<std::pair<SupervisorId, std::string>> lost;
  for (const auto& [id, supervisor] : supervisors_) {
    if (supervisor.ended()) continue;
    const wire::SupervisorSpec& spec = supervisor.spec;
    const auto parent = supervisors_.find(spec.parent);
    if (lost_owner(spec.owner_actor, spec.owner_generation, spec.detached)) {
      lost.emplace_back(id, "its owner is gone");
    } else if (!spec.parent.empty() && (parent == supervisors_.end() || parent->second.ended())) {
      lost.emplace_back(id, "the supervisor above it has ended");
    }
  }
  end_actors(orphans, "its supervisor has ended");
  for (const auto& [id, why] : lost) {
    end_supervisor(supervisors_.at(id), Status(Code::kCancelled, why));
  }
  for (const auto& [id, supervisor] : supervisors_) release_barrier(id);
}

// --- what must hold ------------------------------------------------------------------------------

std::optional<std::string> HeadState::broken_supervisor() const {
  for (const auto& [id, actor] : actors_) {
    if (actor.dead() || actor.spec.supervisor.empty()) continue;
    const auto found = supervisors_.find(actor.spec.supervisor);
    if (found == supervisors_.end() && actor.ending()) continue;
    if (found == supervisors_.end()) return fmt::format("actor {} has no supervisor", id.brief());
    if (found->second.ended() && !actor.ending()) {
      return fmt::format("actor {} runs on without its supervisor", id.brief());
    }
    const auto member = found->second.members.find(actor.spec.supervisor_order);
    if (member == found->second.members.end() || member->second.actor != id) {
      return fmt::format("actor {} is not known to its supervisor", id.brief());
    }
  }
  for (const auto& [id, supervisor] : supervisors_) {
    const bool restarting = supervisor.info.state == wire::SupervisorState::kRestarting;
    if (restarting == supervisor.restarting.empty()) {
      return fmt::format("supervisor {} restarts nobody, or does not know it", id.brief());
    }
    bool waits = false;
    for (const ActorId& actor_id : supervisor.restarting) {
      const auto actor = actors_.find(actor_id);
      if (actor == actors_.end() || actor->second.barrier != id) {
        return fmt::format("supervisor {} waits for actor {} wrongly", id.brief(),
                           actor_id.brief());
      }
      waits = waits || actor->second.has_process();
    }
    if (restarting && !waits) return fmt::format("supervisor {} waits for nobody", id.brief());
    if (!supervisor.spec.detached && !supervisor.ended() &&
        lost_owner(supervisor.spec.owner_actor, supervisor.spec.owner_generation, false)) {
      return fmt::format("supervisor {} has lost its owner", id.brief());
    }
  }
  return std::nullopt;
}

}  // namespace troupe::scheduler

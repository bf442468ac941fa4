#include "scheduler/control/supervision.h"

namespace troupe::scheduler {

Status Supervision::on(PeerId peer, wire::CreateSupervisor& message) {
  const ClientRecord* client = connections_.client_of(peer);
  if (client == nullptr) return not_a_client("creates supervisors");
  wire::SupervisorSpec& spec = message.spec;
  // The same request again, after a reconnection: it is done.
  if (supervisors_.contains(spec.supervisor_id)) return {};
  TROUPE_RETURN_IF_ERROR(supervisors_.check_new(
      spec, actors_.check_owner(spec.owner_actor, spec.owner_generation, spec.detached)));
  TROUPE_RETURN_IF_ERROR(room_.check_room(JournalRoom::kept_by(spec)));
  if (!connections_.has_client(spec.owner)) spec.owner = client->client_id;
  if (spec.job_id.empty()) spec.job_id = client->job_id;
  std::string owner = actors_.owner_name(spec.owner, spec.owner_actor);
  supervisors_.create(std::move(spec), std::move(owner));
  return {};
}

Status Supervision::on(PeerId, wire::EndSupervisor& message) {
  const SupervisorRecord* supervisor = supervisors_.find(message.supervisor_id);
  if (supervisor == nullptr) return not_found("supervisor", message.supervisor_id);
  end(*supervisor, Status(Code::kCancelled,
                          message.reason.empty() ? "it was ended on request" : message.reason));
  return {};
}

void Supervision::on(PeerId peer, wire::ActorExited& message) {
  const NodeRecord* node = nodes_.of_peer(peer);
  if (node == nullptr) return;
  if (const ActorRecord* actor = actors_.current(peer, message.actor_id, message.generation)) {
    return process_exited(*node, *actor, message);
  }
  // A process that nobody wanted any more. A place that is kept for a next process stays kept.
  const LeaseKey lease{message.actor_id, message.generation};
  const ActorRecord* actor = actors_.find(message.actor_id);
  const bool kept =
      actor != nullptr && actor->lease() == lease && actor->info.node_id == node->id();
  if (!kept) nodes_.free_lease(*node, lease);
}

void Supervision::process_exited(const NodeRecord& node, const ActorRecord& actor,
                                 const wire::ActorExited& report) {
  process_gone(actor, actors_.exited(node, actor, report), Duration::zero());
}

void Supervision::process_gone(const ActorRecord& actor, Status cause, Duration restart_delay) {
  if (!actors_.process_gone(actor, cause, restart_delay)) return;
  if (!actor.barrier.empty()) return actors_.release_barrier(actor.barrier);
  member_failed(actor.spec.supervisor, actor.spec.supervisor_order, std::move(cause));
}

void Supervision::member_failed(SupervisorId id, std::uint64_t order, Status cause) {
  for (;;) {
    const SupervisorRecord& supervisor = supervisors_.at(id);
    const wire::RestartPolicy& policy = supervisor.spec.restart;
    if (supervisors_.may_restart_members(supervisor)) {
      supervisors_.failed(supervisor, cause);
      return restart_members(supervisor, order, cause);
    }
    const std::string window =
        policy.window_ms > 0 ? fmt::format(" within {} ms", policy.window_ms) : "";
    cause = error(Code::kAborted, "{} gave up after {} restarts{}: {}", describe(supervisor),
                  policy.max_restarts, window, cause.message());
    if (supervisor.spec.parent.empty()) return end(supervisor, std::move(cause));
    supervisors_.failed(supervisor, cause);
    context_.log("supervisor_escalated", cause.message());
    order = supervisor.spec.order;
    id = supervisor.spec.parent;
  }
}

void Supervision::restart_members(const SupervisorRecord& supervisor, std::uint64_t failed,
                                  const Status& cause) {
  const std::vector<ActorId> actors = supervisors_.restart_members(supervisor, failed);
  const std::string reason =
      fmt::format("{} restarts it with others: {}", describe(supervisor), cause.message());
  context_.log("supervisor_restarting", {}, "{} restarts {} actors: {}", describe(supervisor),
               actors.size(), cause.message());
  for (const ActorId& actor_id : actors) {
    const ActorRecord& actor = actors_.at(actor_id);
    // One that has not begun needs no new beginning.
    if (actor.ending() || actor.info.state == wire::ActorState::kPending) continue;
    // A larger restart is under way.
    if (!actor.barrier.empty() && !supervisors_.is_within(actor.barrier, supervisor.id())) continue;
    actors_.join_barrier(supervisor, actor);
    if (actor.has_process() && !actor.stopping) {
      actors_.end(actor, true, supervisor.spec.grace_ms, reason);
    }
  }
  // Supervisors whose own restart this one has taken over.
  for (const auto& [id, inner] : supervisors_.all()) {
    if (inner.restarting.empty()) actors_.release_barrier(id);
  }
  actors_.release_barrier(supervisor.id());
}

void Supervision::end_all(const std::vector<SupervisorId>& ids, const std::string& reason) {
  for (const SupervisorId& id : ids) end(supervisors_.at(id), Status(Code::kCancelled, reason));
}

void Supervision::end(const SupervisorRecord& supervisor, Status why) {
  if (supervisor.ended()) return;
  supervisors_.ended(supervisor, std::move(why));
  const std::string reason =
      supervisor.info.why.code() == Code::kAborted
          ? supervisor.info.why.message()
          : fmt::format("{} ended: {}", describe(supervisor), supervisor.info.why.message());
  std::vector<ActorId> actors;
  std::vector<SupervisorId> groups;
  for (const auto& [order, member] : supervisor.members) {
    if (member.supervisor.empty()) {
      actors.push_back(member.actor);
    } else {
      groups.push_back(member.supervisor);
    }
  }
  end_all(groups, reason);
  // Out of every barrier first, so that none of them gets another process meanwhile.
  for (const ActorId& id : actors) {
    const SupervisorId barrier = actors_.at(id).barrier;
    actors_.leave_barrier(actors_.at(id));
    actors_.release_barrier(barrier);
  }
  for (const ActorId& id : actors) {
    actors_.end(actors_.at(id), false, supervisor.spec.grace_ms, reason);
  }
}

void Supervision::resume_supervisors() {
  const auto orphans = actors_.ids_where([this](const ActorRecord& actor) {
    return !actor.dead() && !actor.spec.supervisor.empty() &&
           supervisors_.has_ended(actor.spec.supervisor);
  });
  // The journal ends in the middle of an end, or of a restart.
  std::vector<std::pair<SupervisorId, std::string>> lost;
  for (const auto& [id, supervisor] : supervisors_.all()) {
    if (supervisor.ended()) continue;
    const wire::SupervisorSpec& spec = supervisor.spec;
    if (!spec.detached && spec.owner_actor.empty()) {
      connections_.await_owner(spec.owner, spec.job_id);
    }
    if (actors_.lost_owner(spec.owner_actor, spec.owner_generation, spec.detached)) {
      lost.emplace_back(id, "its owner is gone");
    } else if (!spec.parent.empty() && supervisors_.has_ended(spec.parent)) {
      lost.emplace_back(id, "the supervisor above it has ended");
    }
  }
  actors_.end_all(orphans, "its supervisor has ended");
  for (const auto& [id, why] : lost) end(supervisors_.at(id), Status(Code::kCancelled, why));
  for (const auto& [id, supervisor] : supervisors_.all()) actors_.release_barrier(id);
}

std::optional<std::string> Supervision::broken_invariant() const {
  for (const auto& [id, actor] : actors_.all()) {
    const SupervisorRecord* supervisor = supervisors_.find(actor.spec.supervisor);
    if (actor.dead() || actor.spec.supervisor.empty()) continue;
    TROUPE_HOLDS(supervisor != nullptr || actor.ending(), "actor {} has no supervisor", id.brief());
    if (supervisor == nullptr) continue;
    TROUPE_HOLDS(!supervisor->ended() || actor.ending(), "actor {} runs on without its supervisor",
                 id.brief());
    const auto member = supervisor->members.find(actor.spec.supervisor_order);
    TROUPE_HOLDS(member != supervisor->members.end() && member->second.actor == id,
                 "actor {} is not known to its supervisor", id.brief());
  }
  for (const auto& [id, supervisor] : supervisors_.all()) {
    bool waits = supervisor.restarting.empty();
    for (const ActorId& actor_id : supervisor.restarting) {
      const ActorRecord* actor = actors_.find(actor_id);
      TROUPE_HOLDS(actor != nullptr && actor->barrier == id,
                   "supervisor {} waits for actor {} wrongly", id.brief(), actor_id.brief());
      waits = waits || actor->has_process();
    }
    TROUPE_HOLDS(waits, "supervisor {} waits for nobody", id.brief());
    const wire::SupervisorSpec& spec = supervisor.spec;
    TROUPE_HOLDS(supervisor.ended() ||
                     !actors_.lost_owner(spec.owner_actor, spec.owner_generation, spec.detached),
                 "supervisor {} has lost its owner", id.brief());
  }
  return std::nullopt;
}

}  // namespace troupe::scheduler

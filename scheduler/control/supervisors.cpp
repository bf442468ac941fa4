#include "scheduler/control/supervisors.h"

#include <algorithm>

#include "scheduler/control/journal_bytes.h"

namespace troupe::scheduler {

Status Supervisors::check_new(const wire::SupervisorSpec& spec, Status owner) const {
  if (context_.stopping()) return Status(Code::kFailedPrecondition, "the cluster is stopping");
  if (spec.supervisor_id.empty()) {
    return Status(Code::kInvalidArgument, "a supervisor without an id");
  }
  if (room_.living().supervisors >= context_.config().supervisors_max) {
    return error(Code::kOverloaded, "the cluster has {} supervisors; its limit is {}",
                 room_.living().supervisors, context_.config().supervisors_max);
  }
  if (!owner.ok() || spec.parent.empty()) return owner;
  const SupervisorRecord* parent = find(spec.parent);
  if (parent == nullptr) {
    return error(Code::kNotFound, "there is no supervisor {} that could be its parent",
                 spec.parent.brief());
  }
  if (parent->ended()) {
    return error(Code::kFailedPrecondition, "{}, which is to be its parent, has ended: {}",
                 describe(*parent), parent->info.why.message());
  }
  if (spec.detached && !parent->spec.detached) {
    return error(Code::kInvalidArgument,
                 "a detached supervisor under {}, which is not: it would end with it",
                 describe(*parent));
  }
  return {};
}

Status Supervisors::check_member(const wire::ActorSpec& spec) const {
  if (spec.supervisor.empty()) return {};
  const SupervisorRecord* found = find(spec.supervisor);
  if (found == nullptr) {
    return error(Code::kNotFound, "there is no supervisor {}", spec.supervisor.to_string());
  }
  const SupervisorRecord& supervisor = *found;
  if (supervisor.ended()) {
    return error(Code::kFailedPrecondition, "{} has ended: {}", describe(supervisor),
                 supervisor.info.why.message());
  }
  if (spec.restart.max_restarts != 0) {
    return error(Code::kInvalidArgument,
                 "{} decides about restarts of its members: leave max_restarts "
                 "of {} at 0",
                 describe(supervisor), spec.type);
  }
  if (spec.detached && !supervisor.spec.detached) {
    return error(Code::kInvalidArgument,
                 "a detached {} under {}, which is not: it would end with it", spec.type,
                 describe(supervisor));
  }
  return {};
}

bool Supervisors::is_within(SupervisorId inner, SupervisorId outer) const {
  while (inner != outer) {
    const SupervisorRecord* found = find(inner);
    if (found == nullptr) return false;
    inner = found->spec.parent;
  }
  return true;
}

bool Supervisors::has_ended(SupervisorId id) const {
  const SupervisorRecord* found = find(id);
  return found == nullptr || found->ended();
}

void Supervisors::create(wire::SupervisorSpec spec, std::string owner_name) {
  spec.order = context_.next_order();
  if (!spec.parent.empty()) {
    SupervisorRecord& parent = records_.at(spec.parent);
    parent.members[spec.order] = {{}, spec.supervisor_id};
    changed(parent);
  }
  SupervisorRecord& supervisor = records_[spec.supervisor_id];
  supervisor.info.supervisor_id = spec.supervisor_id;
  supervisor.info.name = spec.name;
  supervisor.info.strategy = spec.strategy;
  supervisor.info.parent = spec.parent;
  supervisor.info.job_id = spec.job_id;
  supervisor.info.owner_name = clipped(std::move(owner_name), kOwnerBytes);
  supervisor.spec = std::move(spec);
  room_.take(supervisor.spec);
  context_.record(SupervisorCreated{supervisor.spec});
  changed(supervisor);
}

void Supervisors::join(wire::ActorSpec& spec) {
  if (spec.supervisor.empty()) return;
  // So that nodes keep what it saved: its supervisor may start it again.
  spec.restart.max_restarts = -1;
  spec.supervisor_order = context_.next_order();
  SupervisorRecord& supervisor = records_.at(spec.supervisor);
  supervisor.members[spec.supervisor_order] = {spec.actor_id, {}};
  changed(supervisor);
}

bool Supervisors::leave(const ActorRecord& actor) {
  const auto found = records_.find(actor.spec.supervisor);
  if (found == records_.end()) return false;
  if (found->second.members.erase(actor.spec.supervisor_order) != 0) changed(found->second);
  return true;
}

bool Supervisors::may_restart_members(const SupervisorRecord& supervisor) {
  changed(supervisor);
  return counted_.contains(supervisor.id()) ||
         may_restart(supervisor.spec.restart, context_.unix_us(),
                     edit(supervisor).restarts_unix_us);
}

void Supervisors::failed(const SupervisorRecord& supervisor, const Status& cause) {
  edit(supervisor).info.why = clipped(cause, kLivingTextBytes);
}

std::vector<ActorId> Supervisors::restart_members(const SupervisorRecord& record,
                                                  std::uint64_t failed) {
  SupervisorRecord& supervisor = edit(record);
  if (counted_.insert(supervisor.id()).second) {
    supervisor.restarts_unix_us.push_back(context_.unix_us());
    ++supervisor.info.restarts;
  }
  supervisor.info.state = wire::SupervisorState::kRestarting;
  std::vector<ActorId> actors;
  for (const auto& [order, member] : supervisor.members) {
    const bool affected =
        order == failed || supervisor.spec.strategy == wire::RestartStrategy::kAllForOne ||
        (supervisor.spec.strategy == wire::RestartStrategy::kRestForOne && order > failed);
    if (affected) restart_member(member, actors);
  }
  return actors;
}

void Supervisors::restart_member(const wire::SupervisorMember& member,
                                 std::vector<ActorId>& actors) {
  if (member.supervisor.empty()) return actors.push_back(member.actor);
  SupervisorRecord& group = records_.at(member.supervisor);
  if (!group.restarts_unix_us.empty()) {
    group.restarts_unix_us.clear();
    changed(group);
  }
  for (const auto& [order, inner] : group.members) restart_member(inner, actors);
}

void Supervisors::leaves_barrier(SupervisorId barrier, ActorId id) {
  const auto found = records_.find(barrier);
  if (found != records_.end()) found->second.restarting.erase(id);
}

std::set<ActorId> Supervisors::open_barrier(const SupervisorRecord& supervisor) {
  edit(supervisor).info.state = wire::SupervisorState::kRunning;
  changed(supervisor);
  return std::exchange(edit(supervisor).restarting, {});
}

void Supervisors::ended(const SupervisorRecord& record, Status why) {
  SupervisorRecord& supervisor = edit(record);
  supervisor.info.state = wire::SupervisorState::kEnded;
  supervisor.info.why = clipped(std::move(why), kLivingTextBytes);
  room_.let_go(supervisor.spec);
  ended_.add(supervisor.id(), JournalRoom::left_by(supervisor));
  changed(supervisor);
  context_.log("supervisor_ended", {}, "{} ended with its {} members: {}", describe(supervisor),
               supervisor.members.size(), supervisor.info.why.message());
  const auto parent = records_.find(supervisor.spec.parent);
  if (parent != records_.end() && parent->second.members.erase(supervisor.spec.order) != 0) {
    changed(parent->second);
  }
}

void Supervisors::end_apply() {
  counted_.clear();
  // The members of one that has ended are being stopped until it has none.
  forget_old(context_.config().ended_supervisors_max,
             [](const SupervisorRecord& supervisor) { return supervisor.members.empty(); });
}

Status Supervisors::replay(const SupervisorCreated& delta) {
  records_[delta.spec.supervisor_id].spec = delta.spec;
  context_.used_order(delta.spec.order);
  return {};
}

Status Supervisors::replay(const SupervisorChanged& delta) {
  const auto found = records_.find(delta.info.supervisor_id);
  if (found == records_.end()) {
    return error(Code::kDataLoss, "the journal changes supervisor {}, which it never created",
                 delta.info.supervisor_id.to_string());
  }
  SupervisorRecord& supervisor = found->second;
  const bool ends = delta.info.state == wire::SupervisorState::kEnded && !supervisor.ended();
  static_cast<SupervisorChanged&>(supervisor) = delta;
  if (ends) ended_.add(supervisor.id(), JournalRoom::left_by(supervisor));
  return {};
}

void Supervisors::resume() {
  for (const auto& [id, supervisor] : all()) {
    if (supervisor.ended()) continue;
    room_.take(supervisor.spec);
    const auto parent = records_.find(supervisor.spec.parent);
    if (parent != records_.end()) parent->second.members[supervisor.spec.order] = {{}, id};
  }
}

void Supervisors::resume_member(const ActorRecord& actor) {
  const auto supervisor = records_.find(actor.spec.supervisor);
  if (supervisor == records_.end()) return;
  supervisor->second.members[actor.spec.supervisor_order] = {actor.id(), {}};
  if (has_ended(actor.barrier)) return;
  records_.at(actor.barrier).restarting.insert(actor.id());
  records_.at(actor.barrier).info.state = wire::SupervisorState::kRestarting;
}

std::optional<std::string> Supervisors::broken_invariant() const {
  for (const auto& [id, supervisor] : all()) {
    TROUPE_HOLDS((supervisor.info.state == wire::SupervisorState::kRestarting) ==
                     !supervisor.restarting.empty(),
                 "supervisor {} restarts nobody, or does not know it", id.brief());
  }
  return std::nullopt;
}

}  // namespace troupe::scheduler

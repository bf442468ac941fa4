#include "scheduler/control/actors.h"

#include <algorithm>

#include "scheduler/control/journal_bytes.h"
#include "scheduler/policy/program_kind.h"

namespace troupe::scheduler {

std::string Actors::describe_name(const Name& name) {
  return name.first.empty() ? fmt::format("'{}'", name.second)
                            : fmt::format("'{}' in namespace '{}'", name.second, name.first);
}

void Actors::release_name(const ActorRecord& actor) {
  const auto named = living_names_.find(name_of(actor.spec));
  if (named != living_names_.end() && named->second == actor.id()) living_names_.erase(named);
}

const ActorRecord* Actors::named(const Name& name) const {
  const auto found = living_names_.find(name);
  return found == living_names_.end() ? nullptr : &at(found->second);
}

Result<const ActorRecord*> Actors::existing(const wire::ActorSpec& spec) const {
  if (spec.name.empty()) {
    return Status(Code::kInvalidArgument, "getting or creating an actor needs a name");
  }
  const ActorRecord* actor = named(name_of(spec));
  if (actor == nullptr) return actor;
  if (actor->spec.type != spec.type) {
    return error(Code::kInvalidArgument, "the actor {} is a {}, not a {}",
                 describe_name(name_of(spec)), actor->spec.type, spec.type);
  }
  if (actor->spec.constructor_arguments != spec.constructor_arguments ||
      actor->spec.arguments_beside_bytes != spec.arguments_beside_bytes ||
      actor->spec.arguments_beside_hash != spec.arguments_beside_hash) {
    return error(Code::kInvalidArgument,
                 "the actor {} was created with other constructor arguments: "
                 "get it by its name, "
                 "or ask for one with the same",
                 describe_name(name_of(spec)));
  }
  return actor;
}

Status Actors::check_owner(ActorId owner, std::uint64_t generation, bool detached) const {
  if (detached || owner.empty()) return {};
  const ActorRecord* actor = find(owner);
  if (actor == nullptr) {
    return error(Code::kFailedPrecondition, "there is no actor {} that could own it",
                 owner.brief());
  }
  if (actor->ending() || lost_owner(owner, generation, detached)) {
    return error(Code::kFailedPrecondition, "{}, which is to own it, {}", describe(*actor),
                 actor->ending() ? "has ended" : "has another process by now");
  }
  return {};
}

bool Actors::lost_owner(ActorId owner, std::uint64_t generation, bool detached) const {
  if (detached || owner.empty()) return false;
  const ActorRecord* actor = find(owner);
  if (actor == nullptr || actor->dead()) return true;
  return generation != 0 && (actor->info.generation != generation || !actor->has_process());
}

std::string Actors::owner_name(ClientId owner, ActorId owner_actor) const {
  if (const ActorRecord* actor = find(owner_actor)) return describe(*actor);
  const ClientRecord* client = connections_.client(owner);
  return client == nullptr ? std::string() : describe(*client);
}

bool Actors::outlives_job(const ActorRecord& actor) const {
  const ActorRecord* at = &actor;
  for (std::size_t depth = 0; at != nullptr && depth < all().size(); ++depth) {
    if (at->spec.detached) return true;
    at = find(at->spec.owner_actor);
  }
  return false;
}

// Who watches it is told, and so is its job where it is the job's program.
void Actors::changed(const ActorRecord& actor) {
  Table::changed(actor);
  if (is_job_program(actor.spec)) changed_programs_.insert(actor.spec.job_id);
}

void Actors::index(const ActorRecord& actor) {
  if (!actor.spec.name.empty() && !actor.ending()) living_names_[name_of(actor.spec)] = actor.id();
  if (!actor.spec.detached && !actor.spec.owner_actor.empty()) {
    owned_[actor.spec.owner_actor].insert(actor.id());
  }
  if (actor.in_group()) grouped_[actor.spec.placement_group].insert(actor.id());
  room_.take(actor);
  room_.recount(edit(actor));
}

std::optional<std::pair<ActorId, std::uint64_t>> Actors::take_ended_owner() {
  if (ended_owners_.empty()) return std::nullopt;
  const auto first = ended_owners_.front();
  ended_owners_.pop_front();
  return first;
}

std::optional<JobId> Actors::take_changed_program() {
  if (changed_programs_.empty()) return std::nullopt;
  return changed_programs_.extract(changed_programs_.begin()).value();
}

void Actors::end_apply() {
  lined_up_.clear();
  forget_old(context_.config().dead_actors_max, [](const ActorRecord&) { return true; });
}

Status Actors::replay(ActorCreated& delta) {
  ActorRecord& actor = records_[delta.spec.actor_id];
  context_.used_order(delta.gang);
  context_.used_order(delta.spec.supervisor_order);
  actor.gang = delta.gang;
  actor.spec = std::move(delta.spec);
  return {};
}

Status Actors::replay(ActorChanged& delta) {
  const auto found = records_.find(delta.info.actor_id);
  if (found == records_.end()) {
    return error(Code::kDataLoss, "the journal changes actor {}, which it never created",
                 delta.info.actor_id.to_string());
  }
  ActorRecord& actor = found->second;
  if (delta.queue_order != 0 && (delta.info.state == wire::ActorState::kStarting ||
                                 delta.info.state == wire::ActorState::kAlive)) {
    return error(Code::kDataLoss,
                 "the journal says of actor {} that it has a process and waits "
                 "for a place",
                 delta.info.actor_id.to_string());
  }
  const bool dies = delta.info.state == wire::ActorState::kDead && !actor.dead();
  const std::uint64_t order = delta.queue_order;
  static_cast<ActorChanged&>(actor) = std::move(delta);
  if (dies) {
    actor.spec = JournalRoom::remembered(actor.spec);
    ended_.add(actor.id(), JournalRoom::left_by(actor));
  }
  context_.used_order(order);
  return {};
}

void Actors::resume() {
  for (auto& [id, actor] : records_) {
    if (!actor.dead()) resume(actor);
  }
}

void Actors::resume(ActorRecord& actor) {
  index(actor);
  if (!actor.spec.detached && actor.spec.owner_actor.empty()) {
    connections_.await_owner(actor.spec.owner, actor.spec.job_id);
  }
  supervisors_.resume_member(actor);
  if (actor.lease_generation != 0) {
    const NodeRecord* node = nodes_.find(actor.info.node_id);
    const BundleKey bundle{actor.spec.placement_group, actor.info.bundle_index};
    const wire::Resources& amount = actor.spec.resources;
    if (node == nullptr || node->dead() ||
        (!nodes_.keep_lease(*node, actor.lease(), amount, &bundle) &&
         !nodes_.keep_lease(*node, actor.lease(), amount, nullptr) &&
         !(actor.has_process() && nodes_.keep_running(*node, actor.lease(), amount)))) {
      actor.lease_generation = 0;
    }
  }
  const TimePoint rejoined = context_.now() + context_.config().rejoin_grace;
  if (actor.queue_order != 0) {
    line_.add(actor);
  } else if (actor.info.state == wire::ActorState::kRestarting && actor.barrier.empty()) {
    restart_at(actor,
               rejoined);  // not before its node had its chance to come back
  }
  if (!supervisors_.contains(actor.spec.supervisor)) return;
  if (supervisors_.has_ended(actor.barrier)) {
    actor.barrier = {};
  } else {
    actor.not_before = rejoined;
  }
}

std::optional<std::string> Actors::broken_invariant() const {
  for (const auto& [id, actor] : all()) {
    const NodeRecord* node = nodes_.find(actor.info.node_id);
    TROUPE_HOLDS(
        actor.lease_generation == 0 || (node != nullptr && node->leases.contains(actor.lease())),
        "actor {} has a lease of which its node does not know", id.brief());
    TROUPE_HOLDS(!actor.has_process() || actor.lease_generation == actor.info.generation,
                 "actor {} runs without a lease of its generation", id.brief());
    TROUPE_HOLDS(
        !actor.state_lost || actor.spec.replicas > 0 ||
            (actor.info.state_lost_generation != 0 && !actor.info.saved_state_node.empty()),
        "actor {} has lost its state, and nobody says so", id.brief());
    TROUPE_HOLDS(!actor.dead() || (actor.lease_generation == 0 && actor.queue_order == 0),
                 "dead actor {} holds something", id.brief());
    TROUPE_HOLDS(actor.queue_order == 0 || line_.contains(key_of(actor)),
                 "actor {} is not where it waits", id.brief());
    TROUPE_HOLDS(actor.dead() || actor.has_process() || actor.queue_order != 0 ||
                     actor.restart_at.has_value() || !actor.barrier.empty(),
                 "actor {} is forgotten: it neither runs nor waits", id.brief());
    if (actor.ending()) continue;
    const wire::ActorSpec& spec = actor.spec;
    TROUPE_HOLDS(!lost_owner(spec.owner_actor, spec.owner_generation, spec.detached),
                 "actor {} has lost its owner", id.brief());
    TROUPE_HOLDS(
        spec.detached || spec.owner_actor.empty() || owned_by(spec.owner_actor).contains(id),
        "actor {} is not known to its owner", id.brief());
  }
  for (const auto& [key, entry] : line_.all()) {
    for (const ActorId& id : entry.members) {
      const ActorRecord* actor = find(id);
      TROUPE_HOLDS(actor != nullptr && key_of(*actor) == key,
                   "queue entry {} names actor {} wrongly", key.order, id.brief());
    }
  }
  for (const auto& [owner, children] : owned_) {
    for (const ActorId& id : children) {
      TROUPE_HOLDS(contains(id) && !at(id).dead(), "actor {} owns actor {}, which is dead",
                   owner.brief(), id.brief());
    }
  }
  for (const auto& [group, members] : grouped_) {
    for (const ActorId& id : members) {
      TROUPE_HOLDS(contains(id) && !at(id).dead() && at(id).spec.placement_group == group,
                   "group {} names actor {} wrongly", group.brief(), id.brief());
    }
  }
  return std::nullopt;
}

}  // namespace troupe::scheduler

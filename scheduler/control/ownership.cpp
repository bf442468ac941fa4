// Whose end ends an actor: a client's (clients.cpp), another actor's, or nobody's.
//
// An actor may be owned by another one as such, and then ends when that is dead for good; or by
// that one's process, and then ends with it, also where the owner comes back: what a process made
// for itself its successor makes anew. Ends go down the tree one level at a time: the children of
// one that is ended end when its process is gone.

#include <algorithm>

#include "scheduler/control/head_state.h"

namespace troupe::scheduler {

// Of something new: its owner lives, and has the process that asks.
Status HeadState::check_owner(ActorId owner, std::uint64_t generation, bool detached) const {
  if (detached || owner.empty()) return {};
  const auto found = actors_.find(owner);
  if (found == actors_.end()) {
    return error(Code::kFailedPrecondition, "there is no actor {} that could own it",
                 owner.brief());
  }
  const ActorRecord& actor = found->second;
  if (actor.ending() || lost_owner(owner, generation, detached)) {
    return error(Code::kFailedPrecondition, "{}, which is to own it, {}", describe(actor),
                 actor.ending() ? "has ended" : "has another process by now");
  }
  return {};
}

std::string HeadState::owner_name(ClientId owner, ActorId owner_actor) const {
  if (const auto actor = actors_.find(owner_actor); actor != actors_.end()) {
    return describe(actor->second);
  }
  const auto client = clients_.find(owner);
  if (client == clients_.end()) return {};
  return client->second.name.empty() ? client->second.client_id.brief() : client->second.name;
}

bool HeadState::lost_owner(ActorId owner, std::uint64_t generation, bool detached) const {
  if (detached || owner.empty()) return false;
  const auto found = actors_.find(owner);
  if (found == actors_.end() || found->second.dead()) return true;
  const ActorRecord& actor = found->second;
  return generation != 0 && (actor.info.generation != generation || !actor.has_process());
}

bool HeadState::lost_owner(const ActorRecord& actor) const {
  return lost_owner(actor.spec.owner_actor, actor.spec.owner_generation, actor.spec.detached);
}

// Detached, or owned by one that is.
bool HeadState::outlives_job(const ActorRecord& actor) const {
  const ActorRecord* at = &actor;
  for (std::size_t depth = 0; depth < actors_.size(); ++depth) {
    if (at->spec.detached) return true;
    const auto owner = actors_.find(at->spec.owner_actor);
    if (owner == actors_.end()) return false;
    at = &owner->second;
  }
  return false;
}

void HeadState::own(const ActorRecord& actor) {
  if (!actor.spec.detached && !actor.spec.owner_actor.empty()) {
    owned_[actor.spec.owner_actor].insert(actor.spec.actor_id);
  }
}

void HeadState::disown(const ActorRecord& actor) {
  const auto owner = owned_.find(actor.spec.owner_actor);
  if (owner == owned_.end()) return;
  owner->second.erase(actor.spec.actor_id);
  if (owner->second.empty()) owned_.erase(owner);
}

// Its process is gone, or it is for good. What it owns ends at the end of this apply().
void HeadState::owner_ended(const ActorRecord& owner, bool for_good) {
  ended_owners_.emplace_back(owner.spec.actor_id, for_good ? 0 : owner.info.generation);
}

void HeadState::end_owned() {
  for (std::size_t i = 0; i < ended_owners_.size(); ++i) {
    const auto [id, generation] = ended_owners_[i];
    const auto ends = [id = id, generation = generation](const auto& spec) {
      return !spec.detached && spec.owner_actor == id &&
             (generation == 0 || spec.owner_generation == generation);
    };
    std::vector<ActorId> actors;
    if (const auto owned = owned_.find(id); owned != owned_.end()) {
      for (const ActorId& child : owned->second) {
        const ActorRecord& actor = actors_.at(child);
        if (ends(actor.spec) && !actor.ending()) actors.push_back(child);
      }
    }
    std::vector<SupervisorId> supervisors;
    for (const auto& [supervisor_id, supervisor] : supervisors_) {
      if (ends(supervisor.spec) && !supervisor.ended()) supervisors.push_back(supervisor_id);
    }
    if (actors.empty() && supervisors.empty()) continue;
    const ActorRecord& owner = actors_.at(id);
    const std::string reason = fmt::format("its owner ({}) {}", describe(owner),
                                           generation == 0 ? "is gone" : "has lost its process");
    log_event("owner_gone", {}, id, owner.info.generation,
              fmt::format("{} {}; its {} actors end with it", describe(owner),
                          generation == 0 ? "is gone" : "has lost its process", actors.size()));
    end_supervisors(supervisors, reason);
    end_actors(actors, reason);
  }
  ended_owners_.clear();
}

std::optional<std::string> HeadState::broken_owner() const {
  for (const auto& [id, actor] : actors_) {
    if (actor.ending() || actor.spec.detached || actor.spec.owner_actor.empty()) continue;
    if (lost_owner(actor)) return fmt::format("actor {} has lost its owner", id.brief());
    const auto owned = owned_.find(actor.spec.owner_actor);
    if (owned == owned_.end() || !owned->second.contains(id)) {
      return fmt::format("actor {} is not known to its owner", id.brief());
    }
  }
  for (const auto& [owner, children] : owned_) {
    for (const ActorId& id : children) {
      const auto actor = actors_.find(id);
      if (actor == actors_.end() || actor->second.dead()) {
        return fmt::format("actor {} owns actor {}, which is dead", owner.brief(), id.brief());
      }
    }
  }
  return std::nullopt;
}

}  // namespace troupe::scheduler

// What a node holds for placement groups: the node's side of reserving them in two phases.

#include <algorithm>

#include "scheduler/node/node_state.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {

// Against what the node holds and runs by its own account. A process counts until its whole group
// is gone; one that belongs to the group goes on inside of it.
Status NodeState::check_room(const wire::Reservation& reservation) const {
  wire::Resources free = info().total;
  for (const auto& [id, held] : reservations_) {
    if (id != reservation.group_id) subtract(free, held.reservation.resources);
  }
  for (const auto& [id, actor] : actors_) {
    const GroupId& group = actor.spec.placement_group;
    const bool inside =
        !group.empty() && (group == reservation.group_id || reservations_.contains(group));
    if (actor.has_process() && !inside) subtract(free, actor.spec.resources);
  }
  if (fits(reservation.resources, free)) return {};
  for (auto& [name, amount] : free) amount = std::max<std::int64_t>(amount, 0);
  return error(Code::kResourceExhausted, "it needs {}, and node {} has {} left",
               format_resources(reservation.resources), name_, format_resources(free));
}

Status NodeState::check_bundle(const wire::ActorSpec& spec) const {
  if (spec.placement_group.empty()) return {};
  const auto held = reservations_.find(spec.placement_group);
  if (held != reservations_.end() && held->second.committed) return {};
  return error(Code::kFailedPrecondition, "node {} holds nothing for placement group {}", name_,
               spec.placement_group.brief());
}

std::vector<wire::Reservation> NodeState::reservations() const {
  std::vector<wire::Reservation> all;
  for (const auto& [id, held] : reservations_) all.push_back(held.reservation);
  return all;
}

void NodeState::from_head(wire::PrepareBundles& prepare) {
  wire::Reservation& reservation = prepare.reservation;
  const GroupId id = reservation.group_id;
  wire::BundlesPrepared answer{id, reservation.generation, {}};
  answer.status =
      end_status_ ? error(Code::kUnavailable, "node {} is ending", name_) : check_room(reservation);
  if (answer.status.ok()) reservations_[id] = {std::move(reservation), false};
  send(std::move(answer));
}

void NodeState::from_head(wire::CommitBundles& commit) {
  const auto held = reservations_.find(commit.group_id);
  if (held != reservations_.end() && held->second.reservation.generation == commit.generation) {
    held->second.committed = true;
  }
}

void NodeState::from_head(wire::ReleaseBundles& release) {
  const auto held = reservations_.find(release.group_id);
  if (held != reservations_.end() && held->second.reservation.generation <= release.generation) {
    reservations_.erase(held);
  }
}

}  // namespace troupe::scheduler

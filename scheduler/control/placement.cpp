// Leases, and the queue of those who wait for one.

#include <algorithm>

#include "runtime/base/check.h"
#include "scheduler/control/head_state.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {

void HeadState::enqueue(ActorRecord& actor, std::uint64_t order) {
  actor.queue_order = order;
  queue_[order].push_back(actor.spec.actor_id);
  changed(actor);
}

void HeadState::dequeue(ActorRecord& actor) {
  if (actor.queue_order == 0) return;
  const auto entry = queue_.find(actor.queue_order);
  TROUPE_CHECK(entry != queue_.end());
  std::erase(entry->second, actor.spec.actor_id);
  if (entry->second.empty()) queue_.erase(entry);
  actor.queue_order = 0;
}

std::vector<NodeCapacity> HeadState::capacities() const {
  std::vector<NodeCapacity> result;
  for (const auto& [id, node] : nodes_) {
    if (node.usable()) {
      result.push_back({id, node.info.name, node.info.total, node.info.available});
    }
  }
  return result;
}

Bundle HeadState::bundle_of(const ActorRecord& actor) {
  Bundle bundle{actor.spec.resources, actor.spec.node_affinity, std::nullopt};
  if (!actor.info.node_id.empty()) bundle.preferred = actor.info.node_id;
  return bundle;
}

// In the order of asking; what does not fit lets the next ones try.
void HeadState::schedule() {
  schedule_needed_ = false;
  if (stopping()) return;
  std::vector<std::vector<ActorId>> waiting;
  waiting.reserve(queue_.size());
  for (const auto& [order, members] : queue_) waiting.push_back(members);
  for (const std::vector<ActorId>& members : waiting) try_place(members);
}

void HeadState::try_place(const std::vector<ActorId>& members) {
  std::vector<Bundle> bundles;
  bundles.reserve(members.size());
  for (const ActorId& id : members) bundles.push_back(bundle_of(actors_.at(id)));
  const std::vector<NodeCapacity> nodes = capacities();
  const auto placed = place(bundles, nodes);
  if (!placed) return;
  for (std::size_t i = 0; i < members.size(); ++i) {
    ActorRecord& actor = actors_.at(members[i]);
    dequeue(actor);
    start_on(actor, nodes_.at(nodes[(*placed)[i]].node_id));
  }
}

void HeadState::start_on(ActorRecord& actor, NodeRecord& node) {
  TROUPE_CHECK(node.usable() && actor.lease_generation == 0 && !actor.has_process());
  actor.info.generation += 1;
  actor.info.state = wire::ActorState::kStarting;
  actor.info.node_id = node.info.node_id;
  actor.info.endpoint = node.info.endpoint;
  actor.info.pid = 0;
  actor.started = false;
  take_lease(node, actor);
  log_event("actor_starting", node.info.node_id, actor.spec.actor_id, actor.info.generation,
            fmt::format("{} starts on node {}", describe(actor), node.info.name));
  changed(actor);
  send(node.peer, wire::StartActor{actor.spec, actor.info.generation});
}

void HeadState::take_lease(NodeRecord& node, ActorRecord& actor) {
  TROUPE_CHECK(fits(actor.spec.resources, node.info.available));
  const LeaseKey key{actor.spec.actor_id, actor.info.generation};
  TROUPE_CHECK(node.leases.emplace(key, actor.spec.resources).second);
  subtract(node.info.available, actor.spec.resources);
  actor.lease_generation = actor.info.generation;
  resized_nodes_.insert(node.info.node_id);
}

void HeadState::free_lease(NodeRecord& node, const LeaseKey& key) {
  const auto lease = node.leases.find(key);
  if (lease == node.leases.end()) return;
  add(node.info.available, lease->second);
  node.leases.erase(lease);
  resized_nodes_.insert(node.info.node_id);
  schedule_needed_ = true;
}

void HeadState::free_lease_of(ActorRecord& actor) {
  if (actor.lease_generation == 0) return;
  const auto node = nodes_.find(actor.info.node_id);
  if (node != nodes_.end()) free_lease(node->second, {actor.spec.actor_id, actor.lease_generation});
  actor.lease_generation = 0;
  changed(actor);
}

std::string HeadState::why_pending(const ActorRecord& actor) const {
  const auto entry = queue_.find(actor.queue_order);
  if (entry == queue_.end()) return {};
  std::vector<Bundle> bundles;
  for (const ActorId& id : entry->second) bundles.push_back(bundle_of(actors_.at(id)));
  return explain(bundles, capacities());
}

}  // namespace troupe::scheduler

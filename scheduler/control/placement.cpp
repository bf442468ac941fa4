// Leases on nodes and in bundles, and why something has none.

#include <algorithm>

#include "runtime/base/check.h"
#include "scheduler/control/head_state.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {

Bundle HeadState::bundle_of(const wire::ActorSpec& spec) {
  Bundle bundle;
  bundle.need = spec.resources;
  bundle.selector = spec.label_selector;
  bundle.preference = spec.label_preference;
  (spec.node_affinity_soft ? bundle.preferred : bundle.affinity) = spec.node_affinity;
  return bundle;
}

Bundle HeadState::bundle_of(const ActorRecord& actor) {
  Bundle bundle = bundle_of(actor.spec);
  // Where it ran before lies what its node keeps of it.
  if (!actor.info.node_id.empty()) bundle.preferred = actor.info.node_id;
  return bundle;
}

// What placement sees of the node.
void HeadState::refresh(NodeRecord& node) {
  const wire::NodeInfo& info = node.info;
  if (node.usable()) {
    view_.put(info.node_id, info.name, info.total, info.available, info.labels);
  } else {
    view_.remove(info.node_id);
  }
}

// Something may fit now that did not before.
void HeadState::came_room() {
  room_came_ = true;
  schedule_needed_ = true;
}

void HeadState::start_on(ActorRecord& actor, NodeRecord& node) {
  TROUPE_CHECK(node.usable() && actor.lease_generation == 0 && !actor.has_process());
  if (const auto stray = strays_.find(actor.spec.actor_id); stray != strays_.end()) {
    actor.generation_seen = std::max(actor.generation_seen, stray->second);
  }
  actor.info.generation = std::max(actor.info.generation, actor.generation_seen) + 1;
  actor.info.state = wire::ActorState::kStarting;
  actor.info.node_id = node.info.node_id;
  actor.info.endpoint = node.info.endpoint;
  actor.info.pid = 0;
  actor.exit.reset();
  actor.started = false;
  take_lease(node, actor);
  wire::StartActor start{actor.spec, actor.info.generation};
  say_saved_state(actor, start);
  log_event("actor_starting", node.info.node_id, actor.spec.actor_id, actor.info.generation,
            fmt::format("{} starts on node {}", describe(actor), node.info.name));
  changed(actor);
  start.spec.bundle_index = actor.info.bundle_index;
  send(node.peer, std::move(start));
}

// From the node, or from the bundle on it. False, and nothing taken, where that has not so much.
bool HeadState::keep_lease(NodeRecord& node, const LeaseKey& key, const wire::Resources& amount,
                           const BundleKey* bundle) {
  wire::Resources* from = &node.info.available;
  if (bundle != nullptr) {
    const auto found = node.bundles.find(*bundle);
    if (found == node.bundles.end()) return false;
    from = &found->second.available;
  }
  if (!fits(amount, *from)) return false;
  TROUPE_CHECK(node.leases.emplace(key, amount).second);
  if (bundle != nullptr) node.inside.emplace(key, *bundle);
  subtract(*from, amount);
  return true;
}

void HeadState::take_lease(NodeRecord& node, ActorRecord& actor) {
  const LeaseKey key{actor.spec.actor_id, actor.info.generation};
  const BundleKey bundle{actor.spec.placement_group, actor.info.bundle_index};
  TROUPE_CHECK(keep_lease(node, key, actor.spec.resources, actor.in_group() ? &bundle : nullptr));
  actor.lease_generation = actor.info.generation;
  resized_nodes_.insert(node.info.node_id);
  refresh(node);
}

void HeadState::free_lease(NodeRecord& node, const LeaseKey& key) {
  const auto lease = node.leases.find(key);
  if (lease == node.leases.end()) return;
  const auto inside = node.inside.find(key);
  if (inside == node.inside.end()) {
    add(node.info.available, lease->second);
  } else {
    add(node.bundles.at(inside->second).available, lease->second);
    node.inside.erase(inside);
  }
  forget_stray(key);
  node.leases.erase(lease);
  shrink(node);
  resized_nodes_.insert(node.info.node_id);
  refresh(node);
  came_room();
}

void HeadState::free_lease_of(ActorRecord& actor) {
  if (actor.lease_generation == 0) return;
  const auto node = nodes_.find(actor.info.node_id);
  if (node != nodes_.end()) free_lease(node->second, {actor.spec.actor_id, actor.lease_generation});
  actor.lease_generation = 0;
  changed(actor);
}

// --- why something waits -------------------------------------------------------------------------

// The nodes that could hold it as they are, and those that are there and take nothing new.
std::string HeadState::explain_room(const PlacementRequest& request,
                                    const KeptFree* kept_free) const {
  std::string text = explain(request, view_, kept_free);
  std::size_t drained = 0;
  std::string name;
  for (const auto& [id, node] : nodes_) {
    if (node.info.state != wire::NodeState::kDraining) continue;
    name = node.info.name;
    ++drained;
  }
  if (drained == 1) text += fmt::format("; {} is drained", name);
  if (drained > 1) text += fmt::format("; {} nodes are drained, {} among them", drained, name);
  if (drained > 0) text += " (a node takes actors again when its worker is started anew)";
  return text;
}

std::string HeadState::explain_entry(QueueKey key, const std::vector<Bundle>& bundles,
                                     wire::PlacementStrategy strategy) const {
  const PlacementRequest request{bundles, strategy};
  std::string text = explain_room(request, kept_free_before(key));
  if (turn_ == key) {
    text += "; it is its turn: what comes free on nodes that can hold it is kept for it";
  } else if (view_.size() > 0 && !place_on_empty(request, view_)) {
    text += "; the present nodes could not hold it even if they were idle: it waits for others";
  }
  return text;
}

std::string HeadState::why_pending(const ActorRecord& actor) const {
  const QueueKey key = key_of(actor);
  const auto entry = queue_.find(key);
  if (actor.queue_order == 0 || entry == queue_.end()) return {};
  if (!actor.in_group()) {
    std::vector<Bundle> bundles;
    for (const ActorId& id : entry->second.members) {
      const ActorRecord& member = actors_.at(id);
      if (!member.in_group()) bundles.push_back(bundle_of(member));
    }
    return explain_entry(key, bundles, wire::PlacementStrategy::kPack);
  }
  const GroupRecord& group = groups_.at(actor.spec.placement_group);
  if (!group.created()) {
    return fmt::format("waits for {}, which is {}: {}", describe(group),
                       wire::placement_group_state_name(group.info.state), why_pending(group));
  }
  std::string text = fmt::format("needs {} in ", format_resources(actor.spec.resources));
  text += actor.spec.bundle_index < 0 ? std::string("a bundle")
                                      : fmt::format("bundle {}", actor.spec.bundle_index);
  text += " of " + describe(group);
  constexpr std::size_t kBundlesExplainedMax = 8;
  std::size_t named = 0;
  for (std::size_t i = 0; i < group.info.bundles.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    if (actor.spec.bundle_index >= 0 && actor.spec.bundle_index != index) continue;
    if (named++ == kBundlesExplainedMax) {
      text += "; the others have too little, too";
      break;
    }
    const NodeRecord& node = nodes_.at(group.info.bundles[i].node_id);
    text += fmt::format("; bundle {} on {} has", index, node.info.name);
    const BundleLease& bundle = node.bundles.at({group.spec.group_id, index});
    const char* separator = " ";
    for (const auto& [name, amount] : actor.spec.resources) {
      text += fmt::format("{}{} {} of {} free", std::exchange(separator, ", "), name,
                          format_amount(name, amount_of(bundle.available, name)),
                          format_amount(name, amount_of(bundle.total, name)));
    }
    if (!node.usable()) text += fmt::format(" ({} takes no actors now)", node.info.name);
  }
  return text;
}

std::string HeadState::why_pending(const GroupRecord& group) const {
  switch (group.info.state) {
    case wire::PlacementGroupState::kCreated:
    case wire::PlacementGroupState::kRemoved:
      return group.info.why;
    case wire::PlacementGroupState::kPreparing:
      return fmt::format("places were found; {} nodes have not agreed yet", group.awaited.size());
    case wire::PlacementGroupState::kPending:
    case wire::PlacementGroupState::kRescheduling:
      break;
  }
  std::string text = explain_entry(key_of(group), bundles_of(group), group.spec.strategy);
  return group.info.why.empty() ? text : fmt::format("{}; {}", group.info.why, text);
}

}  // namespace troupe::scheduler

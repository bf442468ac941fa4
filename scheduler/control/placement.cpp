#include "scheduler/control/placement.h"

#include <algorithm>

#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

// Of a group, in the explanation why an actor waits for one of them.
constexpr std::size_t kBundlesExplainedMax = 8;

Bundle bundle_of_record(const ActorRecord& actor) {
  Bundle bundle = Placement::bundle_of(actor.spec);
  // Where it ran before lies what its node keeps of it.
  if (!actor.info.node_id.empty()) bundle.preferred = actor.info.node_id;
  return bundle;
}

wire::PlacementStrategy strategy_of(const GroupRecord* group) {
  return group == nullptr ? wire::PlacementStrategy::kPack : group->spec.strategy;
}

}  // namespace

Bundle Placement::bundle_of(const wire::ActorSpec& spec) {
  Bundle bundle;
  bundle.need = spec.resources;
  bundle.selector = spec.label_selector;
  bundle.preference = spec.label_preference;
  (spec.node_affinity_soft ? bundle.preferred : bundle.affinity) = spec.node_affinity;
  return bundle;
}

// On nodes: those of its actors that are in no group, or those of the group.
std::vector<Bundle> Placement::bundles_of(const QueueEntry& entry) const {
  if (!entry.group.empty()) return groups_.bundles_of(groups_.at(entry.group));
  std::vector<Bundle> bundles;
  for (const ActorId& id : entry.members) {
    const ActorRecord& actor = actors_.at(id);
    if (!actor.in_group()) bundles.push_back(bundle_of_record(actor));
  }
  return bundles;
}

void Placement::schedule() {
  const bool room_came = line_.begin_pass();
  if (context_.stopping()) return;
  const std::set<QueueKey> fresh = line_.take_fresh();
  for (const QueueKey& key : fresh) {
    const QueueEntry& entry = line_.at(key);
    if (!entry.demand) line_.set_demand(key, demand_of(entry));
  }
  if (room_came) {
    schedule_all();
  } else {
    std::set<const Demand*> refused;
    for (const QueueKey& key : fresh) {
      const Demand* demand = &(*line_.at(key).demand)->first;
      if (refused.contains(demand) || try_place(key)) continue;
      refused.insert(demand);
      line_.look_again_after_patience(key);
    }
  }
  line_.end_pass();
}

// In the order of the line, of equal demands only the first that is refused.
void Placement::schedule_all() {
  line_.end_turn();
  bool turn_is_known = false;
  std::set<std::pair<QueueKey, Demands::const_pointer>> next;
  for (const auto& demand : line_.demands()) {
    if (!demand.second.empty()) next.emplace(*demand.second.begin(), &demand);
  }
  while (!next.empty()) {
    const auto [key, demand] = *next.begin();
    next.erase(next.begin());
    if (try_place(key)) {
      const auto following = demand->second.upper_bound(key);
      if (following != demand->second.end()) next.emplace(*following, demand);
    } else if (!turn_is_known) {
      turn_is_known = consider_turn(key);
    }
  }
}

Demand Placement::demand_of(const QueueEntry& entry) const {
  Demand demand;
  if (!entry.group.empty()) {
    const GroupRecord& group = groups_.at(entry.group);
    demand.strategy = group.spec.strategy;
    if (group.was_created) demand.own = entry.group;
    for (const wire::BundleSpec& bundle : group.spec.bundles) {
      demand.parts.push_back({bundle.resources, {}, bundle.label_selector, {}, -1});
    }
  }
  for (const ActorId& id : entry.members) {
    const wire::ActorSpec& spec = actors_.at(id).spec;
    const bool bound = spec.node_affinity.has_value() && !spec.node_affinity_soft;
    demand.parts.push_back({spec.resources, bound ? spec.node_affinity : std::nullopt,
                            spec.label_selector, spec.placement_group, spec.bundle_index});
  }
  return demand;
}

// Whether this is the first in line that the cluster could hold. Then it has turns.
bool Placement::consider_turn(QueueKey key) {
  const QueueEntry& entry = line_.at(key);
  const std::vector<Bundle> bundles = bundles_of(entry);
  // Actors of a group wait for its bundles, which nobody else can take.
  if (bundles.empty()) return false;
  const auto nodes =
      place_on_empty({bundles, strategy_of(groups_.find(entry.group))}, nodes_.view());
  if (!nodes) return false;
  KeptFree room;
  for (std::size_t i = 0; i < bundles.size(); ++i) add(room[(*nodes)[i]], bundles[i].need);
  line_.consider_turn(key, std::move(room), nodes_.view());
  return true;
}

bool Placement::try_place(QueueKey key) {
  return line_.at(key).group.empty() ? try_place_actors(key) : try_place_group(key);
}

bool Placement::try_place_group(QueueKey key) {
  const GroupRecord& group = groups_.at(line_.at(key).group);
  const std::vector<Bundle> bundles = groups_.bundles_of(group);
  const auto nodes =
      place({bundles, group.spec.strategy}, nodes_.view(), line_.kept_free_before(key));
  if (nodes) groups_.prepare(group, *nodes);
  return nodes.has_value();
}

// All of them, those in bundles of placement groups and the others, or none.
bool Placement::try_place_actors(QueueKey key) {
  const QueueEntry& entry = line_.at(key);
  struct Place {
    const ActorRecord* actor = nullptr;
    NodeId node_id;
    std::int32_t bundle_index = -1;
  };
  std::vector<Place> places(entry.members.size());
  Groups::BundleUse used;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const ActorRecord& actor = actors_.at(entry.members[i]);
    places[i].actor = &actor;
    if (!actor.in_group()) continue;
    const GroupRecord& group = groups_.at(actor.spec.placement_group);
    const auto index = groups_.bundle_for(actor.spec, actor.info.bundle_index, group, used, false);
    if (!index) return false;
    places[i].bundle_index = *index;
    places[i].node_id = group.info.bundles[static_cast<std::size_t>(*index)].node_id;
  }
  if (const std::vector<Bundle> bundles = bundles_of(entry); !bundles.empty()) {
    const auto nodes = place({bundles}, nodes_.view(), line_.kept_free_before(key));
    if (!nodes) return false;
    auto next = nodes->begin();
    for (Place& place : places) {
      if (!place.actor->in_group()) place.node_id = *next++;
    }
  }
  for (const Place& place : places) {
    actors_.start_on(*place.actor, nodes_.at(place.node_id), place.bundle_index);
  }
  return true;
}

// The nodes that could hold it as they are, and those that are there and take nothing new.
std::string Placement::explain_room(const PlacementRequest& request,
                                    const KeptFree* kept_free) const {
  std::string text = explain(request, nodes_.view(), kept_free);
  std::size_t drained = 0;
  std::string name;
  for (const auto& [id, node] : nodes_.all()) {
    if (node.info.state != wire::NodeState::kDraining) continue;
    name = node.info.name;
    ++drained;
  }
  if (drained == 1) text += fmt::format("; {} is drained", name);
  if (drained > 1) text += fmt::format("; {} nodes are drained, {} among them", drained, name);
  if (drained > 0) text += " (a node takes actors again when its worker is started anew)";
  return text;
}

std::string Placement::explain_entry(QueueKey key, const std::vector<Bundle>& bundles,
                                     wire::PlacementStrategy strategy) const {
  const PlacementRequest request{bundles, strategy};
  std::string text = explain_room(request, line_.kept_free_before(key));
  if (line_.turn() == key) {
    text +=
        "; it is its turn: what comes free on nodes that can hold it is "
        "kept for it";
  } else if (nodes_.view().size() > 0 && !place_on_empty(request, nodes_.view())) {
    text +=
        "; the present nodes could not hold it even if they were idle: it "
        "waits for others";
  }
  return text;
}

std::string Placement::why_pending(const ActorRecord& actor) const {
  const QueueKey key = key_of(actor);
  const QueueEntry* entry = line_.find(key);
  if (actor.queue_order == 0 || entry == nullptr) return {};
  if (!actor.in_group()) {
    return explain_entry(key, bundles_of(*entry), wire::PlacementStrategy::kPack);
  }
  const GroupRecord& group = groups_.at(actor.spec.placement_group);
  if (group.created()) return explain_bundles(actor, group);
  return fmt::format("waits for {}, which is {}: {}", describe(group),
                     wire::placement_group_state_name(group.info.state), why_pending(group));
}

std::string Placement::explain_bundles(const ActorRecord& actor, const GroupRecord& group) const {
  std::string text = fmt::format("needs {} in ", format_resources(actor.spec.resources));
  text += actor.spec.bundle_index < 0 ? std::string("a bundle")
                                      : fmt::format("bundle {}", actor.spec.bundle_index);
  text += " of " + describe(group);
  std::size_t named = 0;
  for (std::size_t i = 0; i < group.info.bundles.size(); ++i) {
    const auto [group_id, index] = group.bundle(i);
    if (actor.spec.bundle_index >= 0 && actor.spec.bundle_index != index) continue;
    if (named++ == kBundlesExplainedMax) {
      text += "; the others have too little, too";
      break;
    }
    const NodeRecord& node = groups_.holder(group, i);
    text += fmt::format("; bundle {} on {} has", index, node.info.name);
    const BundleLease& bundle = node.bundles.at(group.bundle(i));
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

std::string Placement::why_pending(const GroupRecord& group) const {
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
  std::string text = explain_entry(key_of(group), groups_.bundles_of(group), group.spec.strategy);
  return group.info.why.empty() ? text : fmt::format("{}; {}", group.info.why, text);
}

}  // namespace troupe::scheduler

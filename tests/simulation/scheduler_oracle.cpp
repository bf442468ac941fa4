// What must hold of the head's decisions, looked at where one is made.

#include "scheduler_oracle.h"

#include <algorithm>

#include "scheduler/control/event_kinds.h"

namespace troupe::simulation {

using namespace scheduler;

namespace {

bool is_known(std::string_view kind) {
  return std::any_of(kEventKinds.begin(), kEventKinds.end(),
                     [kind](const EventKind& known) { return known.name == kind; });
}

}  // namespace

void SchedulerOracle::asked_for_gang(const std::vector<ActorId>& ids) {
  gangs_.push_back(ids);
  for (const ActorId& id : ids) gang_of_[id] = &gangs_.back();
}

void SchedulerOracle::decided(const HeadState& head, const std::vector<Delta>& deltas) {
  std::set<const std::vector<ActorId>*> gangs;
  for (const Delta& delta : deltas) {
    if (const auto* changed = get_if<ActorChanged>(&delta)) {
      check_place(changed->info);
      const auto gang = gang_of_.find(changed->info.actor_id);
      if (gang != gang_of_.end()) gangs.insert(gang->second);
    } else if (const auto* group = get_if<GroupChanged>(&delta)) {
      check_group(head, group->info);
    } else if (const auto* logged = get_if<EventLogged>(&delta)) {
      require(is_known(logged->event.kind), "events of kind '{}' have no meaning in event_kinds.h",
              logged->event.kind);
      if (logged->event.kind == "actor_restarting") restarted(head, logged->event);
      if (logged->event.kind == "owner_gone") owner_gone(logged->event);
    }
  }
  for (const auto* gang : gangs) check_gang(head, *gang);
}

// A new head knows what was kept; what was decided and not kept nobody has heard of.
void SchedulerOracle::head_started(const HeadState& head) {
  places_.clear();
  restarts_.clear();
  for (const auto& [id, actor] : head.actors()) {
    places_[id] = {actor.info.generation, actor.info.node_id};
  }
  for (const auto& gang : gangs_) check_gang(head, gang);
}

// A generation is on one node, and none comes back.
void SchedulerOracle::check_place(const wire::ActorInfo& info) {
  const ActorId id = info.actor_id;
  Place& place = places_[id];
  require(info.generation >= place.generation, "{} goes back from generation {} to {}", id.brief(),
          place.generation, info.generation);
  const bool moved = info.generation == place.generation && info.node_id != place.node_id;
  require(!moved || place.generation == 0, "generation {} of {} moves from node {} to {}",
          info.generation, id.brief(), place.node_id.brief(), info.node_id.brief());
  place = {info.generation, info.node_id};
}

// Its members are placed together, or none is; and nobody knows a part of it only.
void SchedulerOracle::check_gang(const HeadState& head, const std::vector<ActorId>& members) const {
  std::size_t unknown = 0;
  std::size_t waiting = 0;
  std::size_t placed = 0;
  for (const ActorId& id : members) {
    const auto actor = head.actors().find(id);
    if (actor == head.actors().end()) {
      ++unknown;
    } else if (actor->second.info.generation > 0) {
      ++placed;
    } else if (!actor->second.dead()) {
      ++waiting;
    }
  }
  require(waiting == 0 || placed == 0, "of the gang of {}, {} are placed and {} wait",
          members.front().brief(), placed, waiting);
  require(waiting == 0 || unknown == 0, "of the gang of {}, {} wait and {} are not known",
          members.front().brief(), waiting, unknown);
}

// A group that is reserved lies whole on living nodes, as its strategy wants it.
void SchedulerOracle::check_group(const HeadState& head,
                                  const wire::PlacementGroupInfo& group) const {
  if (group.state != wire::PlacementGroupState::kCreated) return;
  std::set<NodeId> nodes;
  for (std::size_t i = 0; i < group.bundles.size(); ++i) {
    const NodeId& id = group.bundles[i].node_id;
    nodes.insert(id);
    const auto node = head.nodes().find(id);
    const bool there =
        node != head.nodes().end() && node->second.info.state != wire::NodeState::kDead &&
        node->second.bundles.contains({group.group_id, static_cast<std::int32_t>(i)});
    require(there, "group {} is created, and its bundle {} is nowhere", group.group_id.brief(), i);
  }
  const bool packed = group.strategy == wire::PlacementStrategy::kStrictPack;
  const bool spread = group.strategy == wire::PlacementStrategy::kStrictSpread;
  require(!packed || nodes.size() == 1, "group {} is to be on one node, and is on {}",
          group.group_id.brief(), nodes.size());
  require(!spread || nodes.size() == group.bundles.size(),
          "group {} is to be spread over {} nodes, and is on {}", group.group_id.brief(),
          group.bundles.size(), nodes.size());
}

void SchedulerOracle::restarted(const HeadState& head, const wire::EventRecord& event) {
  const auto actor = head.actors().find(event.actor_id);
  if (actor == head.actors().end()) return;
  const wire::RestartPolicy& policy = actor->second.spec.restart;
  if (policy.max_restarts < 0) return;
  auto& times = restarts_[event.actor_id];
  times.push_back(event.unix_time_us);
  const auto counted = std::count_if(times.begin(), times.end(), [&](std::int64_t time) {
    return policy.window_ms <= 0 || time >= times.back() - policy.window_ms * 1000;
  });
  require(counted <= policy.max_restarts, "{} is restarted {} times; it has {}",
          event.actor_id.brief(), counted, policy.max_restarts);
}

// Only those who were away for long enough.
void SchedulerOracle::owner_gone(const wire::EventRecord& event) const {
  const HeadConfig defaults;
  for (const auto& driver : *drivers_) {
    if (driver->ended() || !event.text.starts_with(driver->name() + " ")) continue;
    const auto away = driver->away_since();
    require(away && world_.timeline.now() - *away >= defaults.owner_grace / 2,
            "{} counts as gone, and is there", driver->name());
  }
}

}  // namespace troupe::simulation

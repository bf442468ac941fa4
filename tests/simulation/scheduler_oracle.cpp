#include "scheduler_oracle.h"

#include <algorithm>

#include "scheduler/control/event_kinds.h"
#include "scheduler/node/kept_keys.h"
#include "scheduler/policy/resources.h"

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

// --- at every decision ---------------------------------------------------------------------------

void SchedulerOracle::decided(const HeadState& head, const std::vector<Delta>& deltas) {
  std::set<const std::vector<ActorId>*> gangs;
  for (const Delta& delta : deltas) {
    if (const auto* changed = std::get_if<ActorChanged>(&delta)) {
      check_place(changed->info);
      const auto gang = gang_of_.find(changed->info.actor_id);
      if (gang != gang_of_.end()) gangs.insert(gang->second);
    } else if (const auto* group = std::get_if<GroupChanged>(&delta)) {
      check_group(head, group->info);
    } else if (const auto* logged = std::get_if<EventLogged>(&delta)) {
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

// --- in the end ----------------------------------------------------------------------------------

std::string SchedulerOracle::unsettled_actor(const ActorRecord& actor) const {
  const ActorId id = actor.spec.actor_id;
  const std::string label =
      fmt::format("{} {} (generation {}, {})", actor.spec.type, id.brief(), actor.info.generation,
                  wire::actor_state_name(actor.info.state));
  if (actor.stopping) return label + " is to stop, and has not";
  if (actor.restart_at) return label + " waits for its back-off";
  if (actor.info.state == wire::ActorState::kAlive) {
    const Process* process = cluster_->ready_process(id);
    if (process == nullptr) return label + " has no process";
    const bool same = process->place().incarnation == actor.info.generation &&
                      cluster_->node_id(process->place().node) == actor.info.node_id;
    if (!same) return label + " has another process: " + process->label();
  } else if (actor.info.state == wire::ActorState::kStarting) {
    return label + " does not get ready";
  } else if (!actor.dead() && actor.queue_order == 0) {
    return label + " neither runs nor waits";
  }
  return {};
}

std::string SchedulerOracle::unsettled_node(int number) const {
  if (!cluster_->node_up(number)) return {};
  const auto node = cluster_->head()->nodes().find(cluster_->node_id(number));
  if (node == cluster_->head()->nodes().end() || !node->second.usable()) {
    return fmt::format("node {} has not joined", number);
  }
  wire::Resources free = node->second.info.total;
  for (const wire::Reservation& held : cluster_->reservations(number)) {
    subtract(free, held.resources);
  }
  for (const Process* process : cluster_->running(number)) {
    const Process::Place& place = process->place();
    // In a bundle: reserved already.
    if (node->second.inside.contains({place.spec.actor_id, place.incarnation})) continue;
    subtract(free, place.spec.resources);
  }
  for (const auto& [name, amount] : free) {
    if (amount_of(node->second.info.available, name) == amount) continue;
    return fmt::format("node {} has {} of {} free, the head says {}", number,
                       format_amount(name, amount), name,
                       format_amount(name, amount_of(node->second.info.available, name)));
  }
  return {};
}

std::string SchedulerOracle::unsettled_group(const GroupRecord& group) const {
  const std::string label = fmt::format("group {}", group.spec.group_id.brief());
  if (group.info.state == wire::PlacementGroupState::kPreparing) return label + " is not answered";
  if (group.retry_at) return label + " is to be tried again";
  for (const ActorId& id : group.actors) {
    const ActorRecord& actor = cluster_->head()->actors().at(id);
    if (!group.created() || !actor.has_process()) continue;
    const auto index = static_cast<std::size_t>(actor.info.bundle_index);
    const bool inside = actor.info.bundle_index >= 0 && index < group.info.bundles.size() &&
                        group.info.bundles[index].node_id == actor.info.node_id;
    if (!inside) return fmt::format("{} runs outside of its {}", id.brief(), label);
  }
  return {};
}

SchedulerOracle::Wanted SchedulerOracle::wanted_reservations() const {
  Wanted wanted;
  for (const auto& [group_id, group] : cluster_->head()->groups()) {
    if (!group.created()) continue;
    for (const wire::BundleInfo& bundle : group.info.bundles) {
      wire::Reservation& reservation = wanted[bundle.node_id][group_id];
      reservation.group_id = group_id;
      reservation.generation = group.info.generation;
      add(reservation.resources, bundle.resources);
    }
  }
  return wanted;
}

// A node holds what the head says that it holds, and nothing else.
std::string SchedulerOracle::unsettled_reservations(int number, const Wanted& all) const {
  if (!cluster_->node_up(number)) return {};
  const auto here = all.find(cluster_->node_id(number));
  auto wanted = here == all.end() ? Wanted::mapped_type() : here->second;
  for (const wire::Reservation& held : cluster_->reservations(number)) {
    const auto known = wanted.find(held.group_id);
    if (known == wanted.end() || known->second != held) {
      return fmt::format("node {} holds {} for group {}, which the head does not want", number,
                         format_resources(held.resources), held.group_id.brief());
    }
    wanted.erase(known);
  }
  if (wanted.empty()) return {};
  return fmt::format("node {} holds nothing for group {}", number, wanted.begin()->first.brief());
}

// Whoever has waited longest and fits somewhere is placed.
std::string SchedulerOracle::unsettled_queue() const {
  const ActorRecord* first = nullptr;
  std::size_t members = 0;
  for (const auto& [id, actor] : cluster_->head()->actors()) {
    if (actor.queue_order == 0 || actor.in_group()) continue;
    if (first == nullptr || actor.queue_order < first->queue_order) {
      first = &actor;
      members = 0;
    }
    if (actor.queue_order == first->queue_order) ++members;
  }
  if (first == nullptr || members != 1) return {};
  for (const auto& [id, node] : cluster_->head()->nodes()) {
    const bool allowed = !first->spec.node_affinity || *first->spec.node_affinity == id;
    if (node.usable() && allowed && fits(first->spec.resources, node.info.available)) {
      return fmt::format("{} {} waits, and fits on node {}", first->spec.type,
                         first->spec.actor_id.brief(), node.info.name);
    }
  }
  return {};
}

std::string SchedulerOracle::unsettled() const {
  const HeadState* head = cluster_->head();
  if (head == nullptr) return "there is no head";
  const Wanted wanted = wanted_reservations();
  for (int node = 0; node < cluster_->nodes(); ++node) {
    if (auto why = unsettled_node(node); !why.empty()) return why;
    if (auto why = unsettled_reservations(node, wanted); !why.empty()) return why;
  }
  for (const auto& [id, actor] : head->actors()) {
    if (auto why = unsettled_actor(actor); !why.empty()) return why;
  }
  for (const auto& [id, group] : head->groups()) {
    if (auto why = unsettled_group(group); !why.empty()) return why;
  }
  for (const auto& [pid, process] : cluster_->processes()) {
    if (!process->alive()) continue;
    const auto actor = head->actors().find(process->place().spec.actor_id);
    const bool wanted = actor != head->actors().end() && !actor->second.dead() &&
                        actor->second.info.generation == process->place().incarnation;
    if (!wanted) return process->label() + " runs, and nobody wants it";
  }
  for (const auto& driver : *drivers_) {
    if (auto why = driver->waits_for(); !why.empty()) return why;
    if (driver->ended()) continue;
    for (const ActorId& id : driver->actors()) {
      const auto actor = head->actors().find(id);
      if (actor != head->actors().end() && !driver->knows(actor->second.info)) {
        return fmt::format("{} has not heard how {} is", driver->name(), id.brief());
      }
    }
    for (const wire::PlacementGroupSpec& spec : driver->groups()) {
      const auto group = head->groups().find(spec.group_id);
      if (group != head->groups().end() && !driver->knows(group->second.info)) {
        return fmt::format("{} has not heard how group {} is", driver->name(),
                           spec.group_id.brief());
      }
    }
  }
  return unsettled_queue();
}

std::string SchedulerOracle::uncleared() const {
  if (auto why = unsettled(); !why.empty()) return why;
  for (const auto& [id, actor] : cluster_->head()->actors()) {
    if (!actor.dead()) return fmt::format("{} {} has no owner left", actor.spec.type, id.brief());
  }
  for (const auto& [id, group] : cluster_->head()->groups()) {
    if (!group.removed()) return fmt::format("group {} has no owner left", id.brief());
  }
  for (int node = 0; node < cluster_->nodes(); ++node) {
    if (!cluster_->node_up(node)) continue;
    if (cluster_->descriptors(node) != 0) {
      return fmt::format("node {} holds {} descriptors for nothing", node,
                         cluster_->descriptors(node));
    }
    // Besides its own.
    for (const std::string& key : cluster_->records(node)) {
      if (key != kNodeKey) return fmt::format("node {} has a record {} for nothing", node, key);
    }
  }
  return {};
}

}  // namespace troupe::simulation

// Where everything is to be once nothing fails any more.

#include <algorithm>

#include "scheduler/node/kept_keys.h"
#include "scheduler/policy/placement.h"
#include "scheduler/policy/resources.h"
#include "scheduler_oracle.h"

namespace troupe::simulation {

using namespace scheduler;

namespace {

constexpr int kLookedAtMost = 200;  // in line, each time

}  // namespace

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
  const bool known = node != cluster_->head()->nodes().end();
  // It was told to leave, and its daemon was killed before it had: its successor takes nothing new.
  if (known && node->second.info.state == wire::NodeState::kDraining) return {};
  if (!known || !node->second.usable()) {
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
  for (const auto& [id, actor] : cluster_->head()->actors()) {
    const bool inside_it = actor.spec.placement_group == group.id() && actor.has_process();
    if (!group.created() || !inside_it) continue;
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

// The first in line that idle nodes could hold does not fit now, else it would have its place. Of
// gangs and of groups that were lost whole the head knows more than is looked at here.
std::string SchedulerOracle::unsettled_line() const {
  const HeadState& head = *cluster_->head();
  ClusterView view;
  for (const auto& [id, node] : head.nodes()) {
    const wire::NodeInfo& info = node.info;
    if (node.usable()) view.put(id, info.name, info.total, info.available, info.labels);
  }
  std::map<QueueKey, std::vector<const ActorRecord*>> actors;
  std::map<QueueKey, const GroupRecord*> groups;
  std::set<QueueKey> line;
  for (const auto& [id, actor] : head.actors()) {
    if (actor.queue_order == 0 || actor.in_group()) continue;
    const QueueKey key{-static_cast<std::int64_t>(actor.spec.priority), actor.queue_order};
    actors[key].push_back(&actor);
    line.insert(key);
  }
  for (const auto& [id, group] : head.groups()) {
    if (!group.waiting) continue;
    const QueueKey key{-static_cast<std::int64_t>(group.spec.priority), group.queue_order};
    groups[key] = &group;
    line.insert(key);
  }
  int looked_at = 0;
  for (const QueueKey& key : line) {
    if (++looked_at > kLookedAtMost) return {};
    std::vector<Bundle> bundles;
    auto strategy = wire::PlacementStrategy::kPack;
    std::string label;
    bool is_judged = true;
    if (const auto group = groups.find(key); group != groups.end()) {
      const wire::PlacementGroupSpec& spec = group->second->spec;
      strategy = spec.strategy;
      label = fmt::format("group {}", spec.group_id.brief());
      is_judged = !group->second->was_created;
      for (const wire::BundleSpec& part : spec.bundles) {
        bundles.push_back({part.resources, {}, {}, part.label_selector, {}, {}});
      }
    } else {
      is_judged = actors[key].size() == 1;
      for (const ActorRecord* actor : actors[key]) {
        const wire::ActorSpec& spec = actor->spec;
        label = fmt::format("{} {}", spec.type, spec.actor_id.brief());
        bundles.push_back({spec.resources, spec.node_affinity, {}, spec.label_selector, {}, {}});
      }
    }
    const PlacementRequest request{bundles, strategy};
    if (!place_on_empty(request, view)) continue;
    const auto nodes = is_judged ? place(request, view) : std::nullopt;
    if (!nodes) return {};
    return fmt::format("{} waits, and fits on node {}", label,
                       head.nodes().at(nodes->front()).info.name);
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
    if (auto why = driver->unheard(*head); !why.empty()) return why;
  }
  return unsettled_line();
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

#include "scheduler/control/membership.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "scheduler/control/journal_bytes.h"
#include "scheduler/policy/program_kind.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

// Of an actor's processes: what no actor reaches, and what can be counted on from.
constexpr std::uint64_t kGenerationMax = std::uint64_t{1} << 62;

std::int64_t milliseconds_of(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace

// --- a node joins, or comes back -----------------------------------------------------------------

Status Membership::check_node(const wire::RegisterNode& message) {
  TROUPE_RETURN_IF_ERROR(
      check_version(context_, "node " + message.node.name, message.protocol_version));
  if (message.node.node_id.empty()) {
    return Status(Code::kInvalidArgument, "a node registers without an id");
  }
  const NodeRecord* known = nodes_.find(message.node.node_id);
  const bool returns = known != nullptr && !known->dead();
  if (context_.stopping() && !returns) return Status(Code::kUnavailable, "the cluster is stopping");
  if (const auto bytes = journal_bytes(message.node); bytes > limits::kNodeInfoBytesMax) {
    return error(Code::kInvalidArgument,
                 "node {} tells {} bytes of names, resources and labels; at "
                 "most {} are taken",
                 clipped(message.node.name, kOwnerBytes), bytes, limits::kNodeInfoBytesMax);
  }
  TROUPE_RETURN_IF_ERROR(check_labels(message.node.labels));
  wire::Resources held;
  for (const wire::RunningActor& entry : message.running) {
    TROUPE_RETURN_IF_ERROR(validate(entry.spec.resources));
    if (entry.generation == 0 || entry.generation > kGenerationMax) {
      return error(Code::kInvalidArgument, "node {} says that it runs generation {} of an actor",
                   message.node.name, entry.generation);
    }
    // (Others may have had its CPUs when this head, or the one before, went away.)
    wire::Resources holds = entry.spec.resources;
    if (entry.spec.lends_cpus) holds.erase(std::string(kCpu));
    add(held, holds);
  }
  TROUPE_RETURN_IF_ERROR(validate(message.node.total));
  if (!fits(held, message.node.total)) {
    return error(Code::kInvalidArgument,
                 "node {} says that it runs actors with {}, which is more than its {}",
                 message.node.name, format_resources(held), format_resources(message.node.total));
  }
  return {};
}

void Membership::on(PeerId peer, wire::RegisterNode& message) {
  wire::RegisterNodeReply answer;
  answer.request_id = message.request_id;
  answer.status = check_node(message);
  if (!answer.status.ok()) {
    context_.send(peer, std::move(answer));
    return context_.close(peer);
  }
  const NodeRecord* known = nodes_.find(message.node.node_id);
  const bool returned = known != nullptr && !known->dead();
  if (known != nullptr) {
    // What it agreed to hold, and was not told to, it has forgotten.
    groups_.lose_on(*known, false, fmt::format("node {} registered anew", known->info.name));
  }
  const NodeRecord& node = nodes_.joined(peer, message.node);
  answer.name = node.info.name;
  if (context_.config().heartbeats) {
    answer.heartbeat_interval_ms = milliseconds_of(context_.config().heartbeat_interval);
    answer.heartbeat_timeout_ms = milliseconds_of(context_.config().heartbeat_timeout);
  }
  context_.log(returned ? "node_returned" : "node_joined", {node.id()}, "node {} at {} with {}",
               node.info.name, node.info.endpoint.to_string(), format_resources(node.info.total));
  reconcile(node, message, answer);
  for (const GroupId& id : node.groups()) {
    const GroupRecord& group = groups_.at(id);
    answer.reservations.push_back({id, group.info.generation, group.on_node(node.id())});
  }
  nodes_.refresh(node);
  // Before any command that the new capacity leads to.
  context_.send(peer, std::move(answer));
  // It was away when others were told.
  if (context_.stopping()) context_.send(peer, wire::ShutdownNode{context_.stop_reason()});
  line_.came_room();
}

// The node is the truth about what runs; the head about what should.
void Membership::reconcile(const NodeRecord& node, const wire::RegisterNode& message,
                           wire::RegisterNodeReply& answer) {
  const Nodes::Leases before = nodes_.take_leases(node);
  keep_bundles_that_fit(node, message);
  take_report(node, message, answer);
  std::set<LeaseKey> present;
  for (const auto& [key, amount] : node.leases) present.insert(key);
  for (const auto& [key, amount] : before.amounts) {
    const ActorRecord* actor = actors_.find(key.first);
    if (present.contains(key) || actor == nullptr || actor->lease() != key ||
        actor->info.node_id != node.id()) {
      continue;
    }
    if (actor->has_process()) {
      was_lost(node, *actor, message);
      continue;
    }
    // The place kept for its next process.
    const auto inside = before.inside.find(key);
    const BundleKey* bundle = inside == before.inside.end() ? nullptr : &inside->second;
    if (!nodes_.keep_lease(node, key, amount, bundle)) actors_.lost_lease(*actor);
  }
}

// The bundles on the node as before, if its totals and what runs outside of them allow it.
void Membership::keep_bundles_that_fit(const NodeRecord& node, const wire::RegisterNode& message) {
  wire::Resources needed;
  std::map<BundleKey, wire::Resources> free;
  for (const auto& [key, bundle] : node.bundles) {
    free[key] = bundle.total;
    add(needed, bundle.total);
  }
  for (const wire::RunningActor& entry : message.running) {
    const auto bundle = free.find({entry.spec.placement_group, entry.spec.bundle_index});
    const bool inside = bundle != free.end() && fits(entry.spec.resources, bundle->second);
    if (inside) {
      subtract(bundle->second, entry.spec.resources);
    } else {
      add(needed, entry.spec.resources);
    }
  }
  if (fits(needed, node.info.total)) return;
  groups_.lose_on(node, true,
                  fmt::format("node {} came back with {}, which is too little for it",
                              node.info.name, format_resources(node.info.total)));
}

// What runs there holds its resources until its exit is reported, wanted or not.
void Membership::take_report(const NodeRecord& node, const wire::RegisterNode& message,
                             wire::RegisterNodeReply& answer) {
  for (const wire::RunningActor& entry : message.running) {
    const LeaseKey key{entry.spec.actor_id, entry.generation};
    if (node.leases.contains(key)) continue;
    const BundleKey bundle{entry.spec.placement_group, entry.spec.bundle_index};
    if (!nodes_.keep_lease(node, key, entry.spec.resources, &bundle)) {
      TROUPE_CHECK(nodes_.keep_running(node, key, entry.spec.resources));
    }
    const ActorRecord* actor = actors_.find(entry.spec.actor_id);
    if (actor != nullptr && is_latest(*actor, node.id(), entry.generation)) {
      actors_.adopt(*actor, node, entry);
      if (actor->lending == entry.generation) nodes_.lend_cpus(node, key);
      continue;
    }
    // To end, perhaps one that this head has started and forgotten.
    if (actor != nullptr) {
      actors_.saw_generation(*actor, entry.generation);
    } else {
      nodes_.note_stray(key);
    }
    answer.stop.push_back(key);
  }
}

// Whether this is the process that the actor should have: no newer one was started, and nobody
// wants it ended. A node that came back after it was given up may still run it.
bool Membership::is_latest(const ActorRecord& actor, NodeId node_id,
                           std::uint64_t generation) const {
  if (actor.in_group()) {
    // Its bundle may be reserved on another node by now.
    const GroupRecord* group = groups_.find(actor.spec.placement_group);
    if (group == nullptr) return false;
    const auto index = static_cast<std::size_t>(std::max(actor.info.bundle_index, 0));
    if (group->reserved() && group->info.bundles[index].node_id != node_id) return false;
  }
  const bool runs = actor.has_process() || actor.info.state == wire::ActorState::kRestarting;
  return runs && !actor.stopping && actor.barrier.empty() && actor.info.generation == generation &&
         actor.info.node_id == node_id;
}

// Its process is gone while the head did not see it, or its start never arrived: a head may end
// between its decision and the word to the node. That is no failure of the actor's. (A program is
// never started twice, whatever happened to it.)
void Membership::was_lost(const NodeRecord& node, const ActorRecord& actor,
                          const wire::RegisterNode& message) {
  const auto report = std::find_if(
      message.exited.begin(), message.exited.end(), [&](const wire::ActorExited& exited) {
        return LeaseKey(exited.actor_id, exited.generation) == actor.lease();
      });
  actors_.lost_lease(actor);
  if (report != message.exited.end()) return supervision_.process_exited(node, actor, *report);
  if (!actor.started && !actor.spec.is_program()) actors_.will_move(actor);
  supervision_.process_gone(
      actor, Status(Code::kUnavailable, "its process was gone when its node came back"),
      Duration::zero());
}

// --- it changes ----------------------------------------------------------------------------------

// A node says that it drains (takes nothing new) or leaves (has stopped everything), or what it has
// to offer from now on.
void Membership::on(PeerId peer, wire::NodeUpdate& message) {
  const NodeRecord* node = nodes_.of_peer(peer);
  if (node == nullptr || node->id() != message.node.node_id) return;
  nodes_.renew_lease(*node);
  if (message.node.state == wire::NodeState::kDead) {
    declare_dead(*node, "node_left", "left the cluster", Duration::zero());
  } else if (message.node.state == wire::NodeState::kDraining) {
    drain(*node, "it leaves", std::nullopt);
  } else if (message.node.state == wire::NodeState::kAlive && validate(message.node.total).ok()) {
    resize(*node, message.node.total);
  }
}

void Membership::on(PeerId peer, wire::NodeNote& message) {
  const NodeRecord* node = nodes_.of_peer(peer);
  if (node != nullptr) context_.log(message.kind, {node->id()}, "{}", message.text);
}

// The node has more than before, or less: devices fail, and come back.
void Membership::resize(const NodeRecord& node, const wire::Resources& total) {
  const Nodes::Resized resized = nodes_.resize(node, total);
  if (!resized.grew && resized.lost.empty()) return;
  if (node.shrinks_to) {
    // Reserved, and no longer there.
    std::set<GroupId> groups;
    for (const auto& [key, bundle] : node.bundles) {
      if (node.lost_some(bundle.total)) groups.insert(key.first);
    }
    for (const GroupId& id : groups) {
      groups_.lose(groups_.at(id), fmt::format("node {} lost {}", node.info.name, resized.lost));
    }
    nodes_.shrink(node);
  }
  // The places kept for next processes.
  const auto homeless = actors_.ids_where([&](const ActorRecord& actor) {
    return actor.lease_generation != 0 && !actor.has_process() && actor.info.node_id == node.id() &&
           !actors_.has_place(actor);
  });
  for (const ActorId& id : homeless) actors_.free_lease_of(actors_.at(id));
  nodes_.is_resized(node);
  if (resized.grew) line_.came_room();
}

// --- it is lost, or leaves -----------------------------------------------------------------------

void Membership::peer_closed(PeerId peer) {
  const NodeRecord* node = nodes_.of_peer(peer);
  if (node == nullptr) return;
  nodes_.disconnected(*node);
  if (node->dead()) return;
  // One that drains says when it has stopped everything: until then its actors may run.
  if (context_.stopping()) {
    return declare_dead(*node, "node_left", "has stopped", Duration::zero());
  }
  nodes_.awaits_return(*node);
  context_.log("node_disconnected", {node->id()},
               "the connection of node {} closed; it may come back", node->info.name);
  groups_.lose_on(*node, false, fmt::format("the connection of node {} closed", node->info.name));
  if (context_.config().heartbeats) {
    context_.command(
        ProbeNode{node->id(), node->info.endpoint, context_.config().disconnect_grace});
  }
}

// Nothing of the node is left: it is dead at once. What refuses connections might still be a
// firewall between, so actors that must not run twice are not started elsewhere before a node that
// is cut off has stopped them.
void Membership::node_gone(const NodeGone& gone) {
  const NodeRecord* node = nodes_.find(gone.node_id);
  if (node == nullptr) return;
  const bool away = node->peer == 0 && node->return_by.has_value();
  if (!away || node->info.endpoint != gone.endpoint) return;
  const TimePoint stopped_by =
      node->last_heard + context_.config().heartbeat_timeout + context_.config().fence_delay;
  declare_dead(*node, "node_died", "closed its connection, and nothing of it is left",
               std::max(stopped_by - context_.now(), Duration::zero()));
}

void Membership::timer(const Timer& timer) {
  if (const auto lost = nodes_.judge(timer)) {
    declare_dead(lost->node, "node_died", lost->why, lost->restart_delay);
  }
}

void Membership::declare_dead(const NodeRecord& node, const char* event, const std::string& why,
                              Duration restart_delay) {
  const NodeId id = node.id();
  const std::string name = node.info.name;
  nodes_.died(node);
  context_.log(event, {id}, "node {} {}", name, why);
  groups_.lose_on(node, true, fmt::format("it was lost whole with node {}, which {}", name, why));
  nodes_.take_leases(node);
  const auto lost = actors_.ids_where([&](const ActorRecord& actor) {
    return actor.lease_generation != 0 && actor.info.node_id == id;
  });
  for (const ActorId& actor_id : lost) {
    const ActorRecord& actor = actors_.at(actor_id);
    actors_.lost_lease(actor);
    if (!actor.has_process()) continue;  // waits for its back-off; will be placed anew
    Status lost_with =
        error(Code::kUnavailable, "{} was lost: its node {} {}", describe(actor), name, why);
    if (actor.spec.is_program()) {
      lost_with.with(kNodeLostContext, fmt::format("its node {} {}", name, why));
    }
    // One that may run twice need not wait until a node that is cut off has stopped it: whoever
    // calls it knows the newer process by its generation.
    const bool must_wait = actor.spec.on_head_loss == wire::OnHeadLoss::kFence;
    supervision_.process_gone(actor, lost_with, must_wait ? restart_delay : Duration::zero());
  }
  nodes_.forget_old();
}

}  // namespace troupe::scheduler

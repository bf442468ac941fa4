// Nodes that join, come back, fall silent, leave.

#include <algorithm>
#include <set>
#include <string_view>

#include "runtime/base/check.h"
#include "scheduler/control/head_state.h"
#include "scheduler/control/journal_bytes.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

// Of an actor's processes: what no actor reaches, and what can be counted on from.
constexpr std::uint64_t kGenerationMax = std::uint64_t{1} << 62;

std::int64_t milliseconds_of(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace

NodeRecord* HeadState::node_of(PeerId peer) {
  const auto record = peers_.find(peer);
  if (record == peers_.end() || record->second.node_id.empty()) return nullptr;
  const auto node = nodes_.find(record->second.node_id);
  return node != nodes_.end() && node->second.peer == peer ? &node->second : nullptr;
}

std::string HeadState::unique_node_name(const std::string& wanted, NodeId node_id) const {
  const std::string base = wanted.empty() ? "node" : wanted;
  // A thousand containers may all be called the same.
  std::set<std::string_view> taken;
  for (const auto& [id, node] : nodes_) {
    if (id != node_id && node.info.state != wire::NodeState::kDead) taken.insert(node.info.name);
  }
  std::string name = base;
  for (int i = 2; taken.contains(name); ++i) name = fmt::format("{}-{}", base, i);
  return name;
}

Status HeadState::check_node(const wire::RegisterNode& message) {
  TROUPE_RETURN_IF_ERROR(check_version("node " + message.node.name, message.protocol_version));
  if (message.node.node_id.empty()) {
    return Status(Code::kInvalidArgument, "a node registers without an id");
  }
  const auto known = nodes_.find(message.node.node_id);
  const bool returns = known != nodes_.end() && known->second.info.state != wire::NodeState::kDead;
  if (stopping() && !returns) return Status(Code::kUnavailable, "the cluster is stopping");
  if (const auto bytes = journal_bytes(message.node); bytes > limits::kNodeInfoBytesMax) {
    return error(Code::kInvalidArgument,
                 "node {} tells {} bytes of names, resources and labels; at most {} are taken",
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
    add(held, entry.spec.resources);
  }
  TROUPE_RETURN_IF_ERROR(validate(message.node.total));
  if (!fits(held, message.node.total)) {
    return error(Code::kInvalidArgument,
                 "node {} says that it runs actors with {}, which is more than its {}",
                 message.node.name, format_resources(held), format_resources(message.node.total));
  }
  return {};
}

void HeadState::on(PeerId peer, wire::RegisterNode& message) {
  wire::RegisterNodeReply answer;
  answer.request_id = message.request_id;
  answer.status = check_node(message);
  if (!answer.status.ok()) {
    send(peer, std::move(answer));
    commands_.push_back(ClosePeer{peer});
    return;
  }
  const NodeId id = message.node.node_id;
  const bool known = nodes_.contains(id);
  NodeRecord& node = nodes_[id];
  const bool returned = known && node.info.state != wire::NodeState::kDead;
  // What it agreed to hold, and was not told to, it has forgotten.
  unreserve_on(node, false, fmt::format("node {} registered anew", node.info.name));
  if (node.peer != 0 && node.peer != peer) {
    peers_.erase(node.peer);
    commands_.push_back(ClosePeer{node.peer});
  }
  const bool draining = returned && node.info.state == wire::NodeState::kDraining;
  const std::int64_t joined = returned ? node.info.joined_unix_us : now_.unix_us;
  node.info = message.node;
  node.info.name = unique_node_name(message.node.name, id);
  node.info.state = draining ? wire::NodeState::kDraining : wire::NodeState::kAlive;
  node.info.joined_unix_us = joined;
  node.peer = peer;
  node.last_heard = now_.steady;
  if (!known) node.beats = PhiAccrual(config_.heartbeat_interval);
  node.beats.begin(now_.steady);
  node.suspected = false;
  node.shrinks_to.reset();
  node.return_by.reset();
  peers_[peer].node_id = id;
  answer.name = node.info.name;
  if (config_.heartbeats) {
    answer.heartbeat_interval_ms = milliseconds_of(config_.heartbeat_interval);
    answer.heartbeat_timeout_ms = milliseconds_of(config_.heartbeat_timeout);
    look_at(node, now_.steady + node.beats.silence(suspicion_deviations_));
  }
  log_event(returned ? "node_returned" : "node_joined", id, {}, 0,
            fmt::format("node {} at {} with {}", node.info.name, node.info.endpoint.to_string(),
                        format_resources(node.info.total)));
  changed(node);
  reconcile(node, message, answer);
  std::set<GroupId> groups;
  for (const auto& [key, bundle] : node.bundles) groups.insert(key.first);
  for (const GroupId& group_id : groups) {
    const GroupRecord& group = groups_.at(group_id);
    answer.reservations.push_back({group_id, group.info.generation, on_node(group, id)});
  }
  refresh(node);
  // Before any command that the new capacity leads to.
  send(peer, std::move(answer));
  if (stopping())
    send(peer, wire::ShutdownNode{stop_reason_});  // it was away when others were told
  came_room();
}

// The bundles on the node as before, as far as its totals and what runs outside of them allow.
void HeadState::restore_bundles(NodeRecord& node, const wire::RegisterNode& message) {
  wire::Resources needed;
  std::map<BundleKey, wire::Resources> free;
  for (auto& [key, bundle] : node.bundles) {
    bundle.available = free[key] = bundle.total;
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
  node.info.available = node.info.total;
  for (const auto& [key, bundle] : node.bundles) subtract(node.info.available, bundle.total);
  if (fits(needed, node.info.total)) return;
  unreserve_on(node, true,
               fmt::format("node {} came back with {}, which is too little for it", node.info.name,
                           format_resources(node.info.total)));
}

// The node is the truth about what runs; the head about what should.
void HeadState::reconcile(NodeRecord& node, const wire::RegisterNode& message,
                          wire::RegisterNodeReply& reply) {
  const auto old_leases = std::exchange(node.leases, {});
  for (const auto& [key, amount] : old_leases) forget_stray(key);
  const auto old_inside = std::exchange(node.inside, {});
  restore_bundles(node, message);
  for (const wire::RunningActor& entry : message.running) {
    const LeaseKey key{entry.spec.actor_id, entry.generation};
    // It holds its resources until its exit is reported, wanted or not.
    if (node.leases.contains(key)) continue;
    const BundleKey bundle{entry.spec.placement_group, entry.spec.bundle_index};
    if (!keep_lease(node, key, entry.spec.resources, &bundle)) {
      TROUPE_CHECK(keep_lease(node, key, entry.spec.resources, nullptr));
    }
    const auto found = actors_.find(entry.spec.actor_id);
    if (found != actors_.end() && is_latest(found->second, node.info.node_id, entry.generation)) {
      adopt(node, found->second, entry);
    } else {
      note_stray(key);
      reply.stop.push_back(key);
    }
  }
  const std::set<LeaseKey> present = [&] {
    std::set<LeaseKey> keys;
    for (const auto& [key, amount] : node.leases) keys.insert(key);
    return keys;
  }();
  for (const auto& [key, amount] : old_leases) {
    const auto found = actors_.find(key.first);
    if (present.contains(key) || found == actors_.end()) continue;
    ActorRecord& actor = found->second;
    if (actor.lease_generation != key.second || actor.info.node_id != node.info.node_id) continue;
    if (actor.has_process()) {
      // Gone while we did not see it, or its start never arrived: a head may end between its
      // decision and the word to the node. That is no failure of the actor's. (A job's program is
      // never started twice, whatever happened to it.)
      const auto exited = std::find_if(
          message.exited.begin(), message.exited.end(), [&lost = key](const wire::ActorExited& e) {
            return e.actor_id == lost.first && e.generation == lost.second;
          });
      actor.lease_generation = 0;
      if (exited != message.exited.end()) {
        process_exited(node, actor, *exited);
      } else {
        if (!actor.started && !actor.spec.is_program()) actor.moving = true;
        process_gone(actor,
                     Status(Code::kUnavailable, "its process was gone when its node came back"),
                     Duration::zero());
      }
    } else {
      // The place kept for its next process.
      const auto inside = old_inside.find(key);
      const BundleKey* bundle = inside == old_inside.end() ? nullptr : &inside->second;
      if (keep_lease(node, key, amount, bundle)) continue;
      actor.lease_generation = 0;
      changed(actor);
    }
  }
}

// Whether this is the process that the actor should have: no newer one was started, and nobody
// wants it ended. A node that came back after it was given up may still run it.
// A process that is to end, perhaps one that this head has started and forgotten.
void HeadState::note_stray(const LeaseKey& key) {
  const auto [id, generation] = key;
  const auto actor = actors_.find(id);
  std::uint64_t& seen = actor != actors_.end() ? actor->second.generation_seen : strays_[id];
  seen = std::max(seen, generation);
}

void HeadState::forget_stray(const LeaseKey& key) {
  const auto stray = strays_.find(key.first);
  if (stray != strays_.end() && stray->second == key.second) strays_.erase(stray);
}

bool HeadState::is_latest(const ActorRecord& actor, NodeId node_id,
                          std::uint64_t generation) const {
  const bool runs = actor.has_process() || actor.info.state == wire::ActorState::kRestarting;
  if (actor.in_group()) {
    // Its bundle may be reserved on another node by now.
    const auto group = groups_.find(actor.spec.placement_group);
    if (group == groups_.end()) return false;
    const auto& bundles = group->second.info.bundles;
    const auto index = static_cast<std::size_t>(std::max(actor.info.bundle_index, 0));
    if (group->second.reserved() && bundles[index].node_id != node_id) return false;
  }
  return runs && !actor.stopping && actor.barrier.empty() && actor.info.generation == generation &&
         actor.info.node_id == node_id;
}

void HeadState::adopt(NodeRecord& node, ActorRecord& actor, const wire::RunningActor& running) {
  if (actor.info.state == wire::ActorState::kRestarting) {
    dequeue(actor);
    actor.restart_at.reset();
    actor.info.state = wire::ActorState::kStarting;
  }
  actor.lease_generation = running.generation;
  actor.started = true;
  actor.info.pid = running.pid;
  actor.info.endpoint = node.info.endpoint;
  if (running.ready && actor.info.state == wire::ActorState::kStarting) {
    actor.info.state = wire::ActorState::kAlive;
    log_event("actor_alive", node.info.node_id, actor.spec.actor_id, actor.info.generation,
              fmt::format("{} is ready (pid {})", describe(actor), actor.info.pid));
  }
  changed(actor);
}

// A node says that it drains (takes nothing new) or leaves (has stopped everything), or what it has
// to offer from now on.
void HeadState::on(PeerId peer, wire::NodeUpdate& message) {
  NodeRecord* node = node_of(peer);
  if (node == nullptr || node->info.node_id != message.node.node_id) return;
  node->last_heard = now_.steady;
  if (message.node.state == wire::NodeState::kDead) {
    declare_dead(*node, "node_left", "left the cluster", Duration::zero());
  } else if (message.node.state == wire::NodeState::kDraining) {
    drain(*node, "it leaves", std::nullopt);
  }
  if (message.node.state == wire::NodeState::kAlive && validate(message.node.total).ok()) {
    resize(*node, message.node.total);
  }
}

// The node has more than before, or less: devices fail, and come back.
void HeadState::resize(NodeRecord& node, const wire::Resources& total) {
  node.shrinks_to.reset();
  std::string lost;
  bool grew = false;
  wire::Resources names = node.info.total;
  for (const auto& [name, amount] : total) names.emplace(name, 0);
  for (const auto& [name, before] : names) {
    const std::int64_t more = amount_of(total, name) - amount_of(node.info.total, name);
    if (more > 0) {
      node.info.total[name] += more;
      node.info.available[name] += more;
      grew = true;
    } else if (more < 0) {
      node.shrinks_to = total;
      lost += fmt::format("{}{} {}", lost.empty() ? "" : ", ", name, format_amount(name, -more));
    }
  }
  if (!grew && lost.empty()) return;
  shrink(node);
  const std::string why = fmt::format("node {} lost {}", node.info.name, lost);
  if (node.shrinks_to) {
    // Reserved, and no longer there.
    std::set<GroupId> groups;
    for (const auto& [key, bundle] : node.bundles) {
      if (lost_some(node, bundle.total)) groups.insert(key.first);
    }
    for (const GroupId& group_id : groups) {
      GroupRecord& group = groups_.at(group_id);
      unreserve(group, group.created() ? "group_rescheduling" : "group_refused", why,
                Duration::zero());
    }
    shrink(node);
  }
  // The places kept for next processes.
  std::vector<ActorId> homeless;
  for (const auto& [actor_id, actor] : actors_) {
    const bool waits = actor.lease_generation != 0 && !actor.has_process() &&
                       actor.info.node_id == node.info.node_id;
    if (waits && !has_place(actor)) homeless.push_back(actor_id);
  }
  for (const ActorId& actor_id : homeless) free_lease_of(actors_.at(actor_id));
  resized_nodes_.insert(node.info.node_id);
  refresh(node);
  changed(node);
  if (grew) came_room();
}

// Whether the node is to have less of something that `amount` has some of.
bool HeadState::lost_some(const NodeRecord& node, const wire::Resources& amount) {
  if (!node.shrinks_to) return false;
  return std::any_of(amount.begin(), amount.end(), [&](const auto& entry) {
    const auto& [name, value] = entry;
    return value > 0 && amount_of(node.info.total, name) > amount_of(*node.shrinks_to, name);
  });
}

// What is free of what the node lost goes.
void HeadState::shrink(NodeRecord& node) {
  if (!node.shrinks_to) return;
  bool left = false;
  for (auto& [name, amount] : node.info.total) {
    const std::int64_t surplus = amount - amount_of(*node.shrinks_to, name);
    const std::int64_t cut = std::clamp<std::int64_t>(amount_of(node.info.available, name), 0,
                                                      std::max<std::int64_t>(surplus, 0));
    if (cut > 0) {
      amount -= cut;
      node.info.available[name] -= cut;
      changed(node);
    }
    left |= surplus > cut;
  }
  if (!left) node.shrinks_to.reset();
}

void HeadState::on(PeerId peer, wire::NodeNote& message) {
  if (const NodeRecord* node = node_of(peer)) {
    log_event(message.kind, node->info.node_id, {}, 0, message.text);
  }
}

void HeadState::node_peer_closed(NodeRecord& node) {
  node.peer = 0;
  node.suspected = false;  // that it is away says more
  refresh(node);
  if (node.info.state == wire::NodeState::kDead) return;
  // One that drains says when it has stopped everything: until then its actors may run.
  if (stopping()) {
    return declare_dead(node, "node_left", "has stopped", Duration::zero());
  }
  node.return_by = now_.steady + config_.disconnect_grace;
  look_at(node, *node.return_by);
  log_event("node_disconnected", node.info.node_id, {}, 0,
            fmt::format("the connection of node {} closed; it may come back", node.info.name));
  unreserve_on(node, false, fmt::format("the connection of node {} closed", node.info.name));
  if (config_.heartbeats) {
    commands_.push_back(ProbeNode{node.info.node_id, node.info.endpoint, config_.disconnect_grace});
  }
}

// Nothing of the node is left: it is dead at once. What refuses connections might still be a
// firewall between, so its actors are not started elsewhere before a node that is cut off has
// stopped them.
void HeadState::node_gone(const NodeGone& gone) {
  const auto found = nodes_.find(gone.node_id);
  if (found == nodes_.end()) return;
  NodeRecord& node = found->second;
  const bool away = node.peer == 0 && node.return_by.has_value();
  if (!away || node.info.endpoint != gone.endpoint) return;
  const TimePoint stopped_by = node.last_heard + config_.heartbeat_timeout + config_.fence_delay;
  declare_dead(node, "node_died", "closed its connection, and nothing of it is left",
               std::max(stopped_by - now_.steady, Duration::zero()));
}

void HeadState::declare_dead(NodeRecord& node, const char* event, const std::string& why,
                             Duration restart_delay) {
  const NodeId id = node.info.node_id;
  const std::string name = node.info.name;
  node.info.state = wire::NodeState::kDead;
  node.suspected = false;
  node.return_by.reset();
  if (node.peer != 0) {
    peers_.erase(node.peer);
    commands_.push_back(ClosePeer{node.peer});
    node.peer = 0;
  }
  log_event(event, id, {}, 0, fmt::format("node {} {}", name, why));
  unreserve_on(node, true, fmt::format("it was lost whole with node {}, which {}", name, why));
  for (const auto& [key, amount] : node.leases) forget_stray(key);
  node.leases.clear();
  node.inside.clear();
  node.info.available = node.info.total;
  refresh(node);
  changed(node);
  std::vector<ActorId> lost;
  for (const auto& [actor_id, actor] : actors_) {
    if (actor.lease_generation != 0 && actor.info.node_id == id) lost.push_back(actor_id);
  }
  for (const ActorId& actor_id : lost) {
    ActorRecord& actor = actors_.at(actor_id);
    actor.lease_generation = 0;
    if (actor.has_process()) {
      Status lost_with =
          error(Code::kUnavailable, "{} was lost: its node {} {}", describe(actor), name, why);
      if (actor.spec.is_program())
        lost_with.with(kNodeLostContext, fmt::format("its node {} {}", name, why));
      process_gone(actor, lost_with, restart_delay);
    } else {
      changed(actor);  // waits for its back-off; will be placed anew
    }
  }
  forget_old_nodes();
}

bool HeadState::awaits_nodes() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const auto& entry) {
    const NodeRecord& node = entry.second;
    return node.info.state == wire::NodeState::kAlive && !node.usable();
  });
}

void HeadState::forget_old_nodes() {
  std::vector<std::pair<std::int64_t, NodeId>> dead;
  for (const auto& [id, node] : nodes_) {
    if (node.info.state == wire::NodeState::kDead) dead.emplace_back(node.info.joined_unix_us, id);
  }
  if (dead.size() <= config_.dead_nodes_max) return;
  std::sort(dead.begin(), dead.end());
  for (std::size_t i = 0; i + config_.dead_nodes_max < dead.size(); ++i) {
    nodes_.erase(dead[i].second);
    changed_nodes_.erase(dead[i].second);
    deltas_.push_back(NodeForgotten{dead[i].second});
  }
}

}  // namespace troupe::scheduler

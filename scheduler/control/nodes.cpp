// Nodes that join, come back, fall silent, leave.

#include <algorithm>

#include "scheduler/control/head_state.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

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
  const auto taken = [&](const std::string& name) {
    return std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
      return entry.first != node_id && entry.second.info.state != wire::NodeState::kDead &&
             entry.second.info.name == name;
    });
  };
  std::string name = base;
  for (int i = 2; taken(name); ++i) name = fmt::format("{}-{}", base, i);
  return name;
}

Status HeadState::check_node(const wire::RegisterNode& message) const {
  if (message.protocol_version != wire::kProtocolVersion) {
    return error(Code::kProtocol,
                 "node {} speaks protocol {}, the head speaks {}: run the same version of troupe "
                 "on both",
                 message.node.name, message.protocol_version, wire::kProtocolVersion);
  }
  if (message.node.node_id.empty()) {
    return Status(Code::kInvalidArgument, "a node registers without an id");
  }
  if (stopping()) return Status(Code::kUnavailable, "the cluster is stopping");
  wire::Resources held;
  for (const wire::RunningActor& entry : message.running) {
    TROUPE_RETURN_IF_ERROR(validate(entry.spec.resources));
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
  if (node.peer != 0 && node.peer != peer) {
    peers_.erase(node.peer);
    commands_.push_back(ClosePeer{node.peer});
  }
  const std::int64_t joined = returned ? node.info.joined_unix_us : now_.unix_us;
  node.info = message.node;
  node.info.name = unique_node_name(message.node.name, id);
  node.info.state = wire::NodeState::kAlive;
  node.info.joined_unix_us = joined;
  node.peer = peer;
  node.last_heard = now_.steady;
  node.return_by.reset();
  peers_[peer].node_id = id;
  answer.name = node.info.name;
  if (config_.heartbeats) {
    answer.heartbeat_interval_ms = milliseconds_of(config_.heartbeat_interval);
    answer.heartbeat_timeout_ms = milliseconds_of(config_.heartbeat_timeout);
    arm(now_.steady + config_.heartbeat_timeout, TimerKind::kNode, id.high, id.low);
  }
  log_event(returned ? "node_returned" : "node_joined", id, {}, 0,
            fmt::format("node {} at {} with {}", node.info.name, node.info.endpoint.to_string(),
                        format_resources(node.info.total)));
  changed(node);
  reconcile(node, message, answer);
  // Before any command that the new capacity leads to.
  send(peer, std::move(answer));
  schedule_needed_ = true;
}

// The node is the truth about what runs; the head about what should.
void HeadState::reconcile(NodeRecord& node, const wire::RegisterNode& message,
                          wire::RegisterNodeReply& reply) {
  const auto old_leases = std::move(node.leases);
  node.leases.clear();
  node.info.available = node.info.total;
  for (const wire::RunningActor& entry : message.running) {
    const LeaseKey key{entry.spec.actor_id, entry.generation};
    // It holds its resources until its exit is reported, wanted or not.
    if (!node.leases.emplace(key, entry.spec.resources).second) continue;
    subtract(node.info.available, entry.spec.resources);
    const auto found = actors_.find(entry.spec.actor_id);
    if (found != actors_.end() && is_latest(found->second, node.info.node_id, entry.generation)) {
      adopt(node, found->second, entry);
    } else {
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
      // Gone while we did not see it, or its start never arrived.
      const auto exited = std::find_if(
          message.exited.begin(), message.exited.end(), [&lost = key](const wire::ActorExited& e) {
            return e.actor_id == lost.first && e.generation == lost.second;
          });
      actor.lease_generation = 0;
      process_gone(actor,
                   exited != message.exited.end()
                       ? death_of(actor, node.info.name, *exited)
                       : Status(Code::kUnavailable, "its process was gone when its node came back"),
                   Duration::zero());
    } else if (fits(amount, node.info.available)) {
      node.leases.emplace(key, amount);  // the place kept for its next process
      subtract(node.info.available, amount);
    } else {
      actor.lease_generation = 0;
      changed(actor);
    }
  }
}

// Whether this is the process that the actor should have: no newer one was started, and nobody
// wants it ended. A node that came back after it was given up may still run it.
bool HeadState::is_latest(const ActorRecord& actor, NodeId node_id, std::uint64_t generation) {
  const bool runs = actor.has_process() || actor.info.state == wire::ActorState::kRestarting;
  return runs && !actor.stopping && actor.info.generation == generation &&
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

void HeadState::on(PeerId peer, wire::Heartbeat& message) {
  NodeRecord* node = node_of(peer);
  if (node == nullptr || node->info.node_id != message.node_id) return;
  node->last_heard = now_.steady;
  send(peer, message);  // the node learns by it that the head hears it
}

// A node says that it drains (takes nothing new) or leaves (has stopped everything).
void HeadState::on(PeerId peer, wire::NodeUpdate& message) {
  NodeRecord* node = node_of(peer);
  if (node == nullptr || node->info.node_id != message.node.node_id) return;
  node->last_heard = now_.steady;
  if (message.node.state == wire::NodeState::kDead) {
    declare_dead(*node, "node_left", "left the cluster", Duration::zero());
  } else if (message.node.state != node->info.state) {
    node->info.state = message.node.state;
    log_event("node_draining", node->info.node_id, {}, 0,
              fmt::format("node {} takes no new actors", node->info.name));
    changed(*node);
  }
}

void HeadState::on(PeerId peer, wire::NodeNote& message) {
  if (const NodeRecord* node = node_of(peer)) {
    log_event(message.kind, node->info.node_id, {}, 0, message.text);
  }
}

void HeadState::node_peer_closed(NodeRecord& node) {
  node.peer = 0;
  if (node.info.state == wire::NodeState::kDead) return;
  if (stopping() || node.info.state == wire::NodeState::kDraining) {
    return declare_dead(node, "node_left", "has stopped", Duration::zero());
  }
  node.return_by = now_.steady + config_.disconnect_grace;
  arm(*node.return_by, TimerKind::kNode, node.info.node_id.high, node.info.node_id.low);
  log_event("node_disconnected", node.info.node_id, {}, 0,
            fmt::format("the connection of node {} closed; it may come back", node.info.name));
}

void HeadState::node_silent_or_gone(NodeRecord& node) {
  const NodeId id = node.info.node_id;
  if (node.info.state == wire::NodeState::kDead) return;
  if (node.peer == 0) {
    if (!node.return_by) return;
    if (*node.return_by > now_.steady) {
      return arm(*node.return_by, TimerKind::kNode, id.high, id.low);
    }
    // By now its keeper, or the daemon itself, has ended its actors: nothing to wait for.
    return declare_dead(node, "node_died", "closed its connection and did not come back",
                        Duration::zero());
  }
  if (!config_.heartbeats) return;
  const TimePoint dead_at = node.last_heard + config_.heartbeat_timeout;
  if (dead_at > now_.steady) return arm(dead_at, TimerKind::kNode, id.high, id.low);
  const std::int64_t silent_ms = milliseconds_of(now_.steady - node.last_heard);
  declare_dead(node, "node_died", fmt::format("was silent for {} ms", silent_ms),
               config_.fence_delay);
}

void HeadState::declare_dead(NodeRecord& node, const char* event, const std::string& why,
                             Duration restart_delay) {
  const NodeId id = node.info.node_id;
  const std::string name = node.info.name;
  node.info.state = wire::NodeState::kDead;
  node.return_by.reset();
  if (node.peer != 0) {
    peers_.erase(node.peer);
    commands_.push_back(ClosePeer{node.peer});
    node.peer = 0;
  }
  log_event(event, id, {}, 0, fmt::format("node {} {}", name, why));
  node.leases.clear();
  node.info.available = node.info.total;
  changed(node);
  std::vector<ActorId> lost;
  for (const auto& [actor_id, actor] : actors_) {
    if (actor.lease_generation != 0 && actor.info.node_id == id) lost.push_back(actor_id);
  }
  for (const ActorId& actor_id : lost) {
    ActorRecord& actor = actors_.at(actor_id);
    actor.lease_generation = 0;
    if (actor.has_process()) {
      process_gone(
          actor,
          error(Code::kUnavailable, "{} was lost: its node {} {}", describe(actor), name, why),
          restart_delay);
    } else {
      changed(actor);  // waits for its back-off; will be placed anew
    }
  }
  forget_old_nodes();
  schedule_needed_ = true;
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

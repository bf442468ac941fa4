// Nodes that are emptied: they take nothing new, and what may run elsewhere goes there. And the end
// of the whole cluster: actors, then nodes, then the head.

#include <algorithm>

#include "scheduler/control/membership.h"

namespace troupe::scheduler {
namespace {

// Another process of it may be started, and not only on the node where it is.
bool may_move(const ActorRecord& actor) {
  const bool bound = actor.spec.node_affinity == actor.info.node_id &&
                     actor.spec.node_affinity.has_value() && !actor.spec.node_affinity_soft;
  return actor.spec.restart.max_restarts != 0 && !bound && !actor.ending();
}

}  // namespace

Status Membership::on(PeerId, wire::DrainNode& message) {
  const NodeRecord* node = nodes_.find(message.node_id);
  if (node == nullptr) return not_found("node", message.node_id);
  if (node->dead()) return error(Code::kFailedPrecondition, "node {} has left", node->info.name);
  const std::string reason = message.reason.empty() ? "on request" : message.reason;
  drain(*node, reason, message.grace_ms);
  if (message.node_ends && node->peer != 0) {
    context_.send(node->peer, wire::ShutdownNode{reason, true, message.grace_ms});
  }
  return {};
}

// Without a time the node stops its actors by itself.
void Membership::drain(const NodeRecord& node, const std::string& reason,
                       std::optional<std::int64_t> grace_ms) {
  if (node.info.state != wire::NodeState::kDraining) {
    nodes_.drains(node);
    context_.log("node_draining", {node.id()}, "node {} takes no new actors: {}", node.info.name,
                 reason);
  }
  if (context_.stopping()) return;
  const auto here = [&](const ActorRecord& actor) {
    return actor.has_process() && actor.info.node_id == node.id();
  };
  const auto moving =
      actors_.ids_where([&](const ActorRecord& actor) { return here(actor) && may_move(actor); });
  for (const ActorId& actor_id : moving) {
    const ActorRecord& actor = actors_.at(actor_id);
    actors_.drained(actor);
    if (grace_ms && !actor.stopping) {
      actors_.end(actor, true, *grace_ms,
                  fmt::format("its node {} is drained: {}", node.info.name, reason), true);
    }
  }
  // Groups go elsewhere, unless that would end an actor of theirs that the node may keep.
  for (const GroupId& group_id : node.groups()) {
    const auto& members = actors_.in_group(group_id);
    const bool keeps = grace_ms && std::any_of(members.begin(), members.end(), [&](ActorId id) {
                         const ActorRecord& actor = actors_.at(id);
                         return here(actor) && !actor.moving && !actor.stopping;
                       });
    if (keeps) continue;
    groups_.lose(groups_.at(group_id), fmt::format("node {} is drained", node.info.name));
  }
}

Status Membership::on(PeerId, wire::StopCluster& message) {
  if (context_.stopping()) return {};
  const std::string reason = message.reason.empty() ? "the cluster was stopped" : message.reason;
  context_.stop(reason);
  stop_by_ = context_.now() + context_.config().stop_timeout;
  context_.arm({stop_by_, TimerKind::kStop});
  context_.log("cluster_stopping", reason);
  const auto waiting = actors_.ids_where(
      [](const ActorRecord& actor) { return !actor.dead() && !actor.has_process(); });
  for (const ActorId& id : waiting) {
    const ActorRecord& actor = actors_.at(id);
    actors_.bury(actor, error(Code::kActorDied, "{} was ended: {}", describe(actor), reason));
  }
  // Those that are away may come back, within their time: they must learn that they are to end.
  for (const auto& [id, node] : nodes_.all()) {
    if (node.peer != 0) context_.send(node.peer, wire::ShutdownNode{reason});
  }
  return {};
}

// A node that has stopped everything says so, or closes its connection.
void Membership::end_when_stopped() {
  if (!context_.stopping() || ended_) return;
  const bool left = std::any_of(nodes_.all().begin(), nodes_.all().end(), [](const auto& entry) {
    return entry.second.peer != 0 || !entry.second.dead();
  });
  if (left && context_.now() < stop_by_) return;
  ended_ = true;
  context_.command(EndHead{context_.stop_reason()});
}

}  // namespace troupe::scheduler

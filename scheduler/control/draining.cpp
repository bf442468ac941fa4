// Nodes that are emptied: they take nothing new, and what may run elsewhere goes there.

#include <algorithm>

#include "scheduler/control/head_state.h"

namespace troupe::scheduler {

// Another process of it may be started, and not only on the node where it is.
bool HeadState::may_move(const ActorRecord& actor) const {
  const bool bound = actor.spec.node_affinity == actor.info.node_id &&
                     actor.spec.node_affinity.has_value() && !actor.spec.node_affinity_soft;
  return actor.spec.restart.max_restarts != 0 && !bound && !actor.ending();
}

void HeadState::on(PeerId peer, wire::DrainNode& message) {
  const auto found = nodes_.find(message.node_id);
  if (found == nodes_.end()) {
    return reply(peer, message.request_id,
                 error(Code::kNotFound, "there is no node {}", message.node_id.to_string()));
  }
  NodeRecord& node = found->second;
  if (node.info.state == wire::NodeState::kDead) {
    return reply(peer, message.request_id,
                 error(Code::kFailedPrecondition, "node {} has left", node.info.name));
  }
  reply(peer, message.request_id, {});
  drain(node, message.reason.empty() ? "on request" : message.reason, message.grace_ms);
}

// Without a time the node stops its actors by itself.
void HeadState::drain(NodeRecord& node, const std::string& reason,
                      std::optional<std::int64_t> grace_ms) {
  const NodeId id = node.info.node_id;
  if (node.info.state != wire::NodeState::kDraining) {
    node.info.state = wire::NodeState::kDraining;
    refresh(node);
    log_event("node_draining", id, {}, 0,
              fmt::format("node {} takes no new actors: {}", node.info.name, reason));
    changed(node);
  }
  if (stopping()) return;
  std::vector<ActorId> moving;
  for (const auto& [actor_id, actor] : actors_) {
    if (actor.has_process() && actor.info.node_id == id && may_move(actor)) {
      moving.push_back(actor_id);
    }
  }
  for (const ActorId& actor_id : moving) {
    ActorRecord& actor = actors_.at(actor_id);
    if (actor.barrier.empty()) actor.moving = true;
    changed(actor);
    if (grace_ms && !actor.stopping) {
      end_actor(actor, true, *grace_ms,
                fmt::format("its node {} is drained: {}", node.info.name, reason), true);
    }
  }
  // Groups go elsewhere, unless that would end an actor of theirs that the node may keep.
  std::set<GroupId> groups;
  for (const auto& [key, bundle] : node.bundles) groups.insert(key.first);
  for (const GroupId& group_id : groups) {
    GroupRecord& group = groups_.at(group_id);
    const bool keeps =
        grace_ms && std::any_of(group.actors.begin(), group.actors.end(), [&](const ActorId& a) {
          const ActorRecord& actor = actors_.at(a);
          return actor.has_process() && actor.info.node_id == id && !actor.moving &&
                 !actor.stopping;
        });
    if (keeps) continue;
    unreserve(group, group.created() ? "group_rescheduling" : "group_refused",
              fmt::format("node {} is drained", node.info.name), Duration::zero());
  }
}

}  // namespace troupe::scheduler

// Where the state lies that an actor has saved, and what becomes of it when the actor starts
// elsewhere. The node on which an actor first saves something says so, once; it is journalled, and
// every later start names that node. A node that is told to start the actor and is not that one
// fetches the state from it, and becomes the one that keeps it.
//
// A state is lost with its node, or with the node's keeper. Whoever starts the actor next is told,
// and so is every process until the actor has saved again; callers are told by
// ActorInfo::state_lost_generation (actors/state_loss.h).

#include "scheduler/control/head_state.h"

namespace troupe::scheduler {

void HeadState::on(PeerId peer, wire::ActorSaved& message) {
  const NodeRecord* node = node_of(peer);
  const auto found = actors_.find(message.actor_id);
  if (node == nullptr) return;
  const NodeId id = node->info.node_id;
  // The actor has ended, or goes on without what lies there.
  const bool needed = found != actors_.end() && !found->second.dead() &&
                      (found->second.info.node_id == id ||
                       (found->second.info.saved_state_node == id && !found->second.state_lost));
  if (!needed) {
    return send(peer, wire::StopActor{message.actor_id, message.generation + 1, 0,
                                      "what it saved there is not needed any more", false});
  }
  ActorRecord& actor = found->second;
  // Its process may have ended since: what it left counts all the same.
  const bool newest = actor.info.generation == message.generation && actor.info.node_id == id;
  if (!newest) return;
  send(peer, message);  // the actor's process waits for it before it answers its call
  if (actor.info.saved_state_node == id && !actor.state_lost) return;
  const auto before = nodes_.find(actor.info.saved_state_node);
  actor.info.saved_state_node = id;
  actor.state_lost = false;
  changed(actor);
  // Where it was fetched from nobody needs it any more.
  if (before != nodes_.end() && before->first != id && before->second.peer != 0) {
    send(before->second.peer,
         wire::StopActor{actor.spec.actor_id, message.generation, 0,
                         fmt::format("node {} keeps its state now", node->info.name), false});
  }
}

// Whether the start failed because the state that the actor had saved is not to be had any more.
bool HeadState::lost_its_state(const NodeRecord& node, const ActorRecord& actor,
                               const wire::ActorExited& exited) const {
  const NodeId at = actor.info.saved_state_node;
  if (exited.constructor_failed || at.empty() || actor.state_lost) return false;
  if (exited.cause.code() == Code::kDataLoss) return true;  // its node, or the other, keeps none
  // It was being fetched from a node that has died meanwhile.
  const auto keeper = nodes_.find(at);
  const bool gone = keeper == nodes_.end() || keeper->second.info.state == wire::NodeState::kDead;
  return gone && at != node.info.node_id && !actor.started && !exited.cause.ok();
}

// Without the state that it had saved: neither its class nor its options say how to go on.
bool HeadState::refused_to_begin(const ActorRecord& actor, const wire::ActorExited& exited) {
  return actor.state_lost && exited.constructor_failed && exited.cause.code() == Code::kDataLoss;
}

// `generation`: the first that begins without it.
void HeadState::lose_state(ActorRecord& actor, std::uint64_t generation) {
  const auto node = nodes_.find(actor.info.saved_state_node);
  actor.state_lost = true;
  actor.info.state_lost_generation = generation;
  log_event("state_lost", actor.info.saved_state_node, actor.spec.actor_id, generation,
            fmt::format("what {} had saved is lost with node {}", describe(actor),
                        node == nodes_.end() ? actor.info.saved_state_node.brief()
                                             : node->second.info.name));
  changed(actor);
}

// Says in `start` where the node finds what the actor saved last, or that it is lost.
void HeadState::say_saved_state(ActorRecord& actor, wire::StartActor& start) {
  const NodeId at = actor.info.saved_state_node;
  if (at.empty()) return;
  const auto node = nodes_.find(at);
  const bool gone = node == nodes_.end() || node->second.info.state == wire::NodeState::kDead;
  if (gone && !actor.state_lost) lose_state(actor, actor.info.generation);
  if (actor.state_lost) {
    start.state_lost_with = node == nodes_.end() ? at.brief() : node->second.info.name;
  } else {
    start.saved_state_node = at;
    start.saved_state_endpoint = node->second.info.endpoint;
  }
}

}  // namespace troupe::scheduler

// Where the state lies that an actor has saved, and what becomes of it when the actor starts
// elsewhere. The node on which an actor first saves something says so, once; it is journalled, and
// every later start names that node. A node that is told to start the actor and is not that one
// fetches the state from it, and becomes the one that keeps it.
//
// A state is lost with its node, or with the node's keeper. Whoever starts the actor next is told,
// and so is every process until the actor has saved again; callers are told by
// ActorInfo::state_lost_generation (actors/state_loss.h).

#include "scheduler/control/actors.h"

namespace troupe::scheduler {

void Actors::on(PeerId peer, wire::ActorSaved& message) {
  const NodeRecord* node = nodes_.of_peer(peer);
  const ActorRecord* actor = find(message.actor_id);
  if (node == nullptr) return;
  const NodeId id = node->id();
  const NodeId before = actor == nullptr ? NodeId() : actor->info.saved_state_node;
  // The actor has ended, or goes on without what lies there.
  const bool needed = actor != nullptr && !actor->dead() &&
                      (actor->info.node_id == id || (before == id && !actor->state_lost));
  if (!needed) {
    return context_.send(peer,
                         wire::StopActor{message.actor_id, message.generation + 1, 0,
                                         "what it saved there is not needed any more", false});
  }
  // Its process may have ended since: what it left counts all the same.
  if (actor->info.generation != message.generation || actor->info.node_id != id) return;
  context_.send(peer,
                message);  // the actor's process waits for it before it answers its call
  if (before == id && !actor->state_lost) return;
  edit(*actor).info.saved_state_node = id;
  edit(*actor).state_lost = false;
  changed(*actor);
  // Where it was fetched from nobody needs it any more.
  const NodeRecord* keeper = nodes_.find(before);
  if (keeper != nullptr && before != id && keeper->peer != 0) {
    context_.send(
        keeper->peer,
        wire::StopActor{actor->id(), message.generation, 0,
                        fmt::format("node {} keeps its state now", node->info.name), false});
  }
}

// Whether the start failed because the state that the actor had saved is not to be had any more.
bool Actors::lost_its_state(const NodeRecord& node, const ActorRecord& actor,
                            const wire::ActorExited& report) const {
  const NodeId at = actor.info.saved_state_node;
  if (report.constructor_failed || at.empty() || actor.state_lost) return false;
  if (report.cause.code() == Code::kDataLoss) return true;  // its node, or the other, keeps none
  // It was being fetched from a node that has died meanwhile.
  const NodeRecord* keeper = nodes_.find(at);
  const bool gone = keeper == nullptr || keeper->dead();
  return gone && at != node.id() && !actor.started && !report.cause.ok();
}

// `generation`: the first that begins without it. Of one that has a copy its next process says
// whether that was lost, too.
void Actors::lose_state(ActorRecord& actor, std::uint64_t generation) {
  actor.state_lost = true;
  if (actor.spec.replicas > 0) return changed(actor);
  tell_lost_state(actor, generation);
}

void Actors::tell_lost_state(ActorRecord& actor, std::uint64_t generation) {
  const NodeId at = actor.info.saved_state_node;
  const NodeRecord* node = nodes_.find(at);
  actor.info.state_lost_generation = generation;
  changed(actor);
  context_.log("state_lost", {at, actor.id(), generation}, "what {} had saved is lost with node {}",
               describe(actor), node == nullptr ? at.brief() : node->info.name);
}

// Says in `start` where the node finds what the actor saved last, or that it is lost.
void Actors::name_saved_state(ActorRecord& actor, wire::StartActor& start) {
  const NodeId at = actor.info.saved_state_node;
  if (at.empty()) return;
  const NodeRecord* node = nodes_.find(at);
  if ((node == nullptr || node->dead()) && !actor.state_lost) {
    lose_state(actor, actor.info.generation);
  }
  if (actor.state_lost) {
    start.state_lost_with = node == nullptr ? at.brief() : node->info.name;
  } else {
    start.saved_state_node = at;
    start.saved_state_endpoint = node->info.endpoint;
  }
}

}  // namespace troupe::scheduler

// What actors save on a node, and where it lies: kept here over their processes, fetched from the
// node where it was kept before, given to the node where it goes.

#include <algorithm>

#include "scheduler/node/kept_keys.h"
#include "scheduler/node/node_state.h"

namespace troupe::scheduler {

void NodeState::save(Actor& actor, FdHandle fd) {
  if (fd == kNoFd) return;
  const bool first = actor.saved_state == kNoFd;
  close(std::exchange(actor.saved_state, fd));
  commands_.push_back(
      node_command::Keep{saved_state_key(actor.spec.actor_id), wire::KeptActor{}, fd, {}});
  // Whoever starts the actor next has to know where to find it.
  if (first) send(wire::ActorSaved{actor.spec.actor_id, actor.generation});
}

void NodeState::drop_saved_state(Actor& actor) {
  if (actor.saved_state == kNoFd) return;
  close(std::exchange(actor.saved_state, kNoFd));
  commands_.push_back(node_command::Unkeep{saved_state_key(actor.spec.actor_id)});
}

// The head will find the state that the process has saved: it may tell its callers. (The message
// travels with the descriptor in this direction, too.)
void NodeState::from_head(wire::ActorSaved& known) {
  const Actor* actor = find(known.actor_id, known.generation);
  if (actor == nullptr || !actor->can_be_told() || actor->saved_state == kNoFd) return;
  commands_.push_back(node_command::TellHost{actor->host, wire::HostSavedState{known.generation},
                                             actor->saved_state});
}

// To a head that may not have heard of them, before it decides anything about their actors.
void NodeState::say_saved_states() {
  for (const auto& [id, actor] : actors_) {
    if (actor.has_lost_state) send(wire::ActorReady{id, actor.generation, true});
    if (actor.saved_state != kNoFd) send(wire::ActorSaved{id, actor.generation});
  }
}

// Sees to it that the process that is to be started gets the state that the actor saved last, and
// none that is older. False: it should be here, and is not; the actor's cause says so.
bool NodeState::find_saved_state(Actor& actor, const wire::StartActor& start) {
  const bool elsewhere =
      !start.saved_state_node.empty() && start.saved_state_node != config_.node.node_id;
  actor.fetching = elsewhere;
  if (elsewhere || !start.state_lost_with.empty()) drop_saved_state(actor);
  if (elsewhere) {
    commands_.push_back(
        node_command::FetchState{actor.host, actor.spec.actor_id, start.saved_state_endpoint});
    return true;
  }
  if (actor.saved_state == kNoFd) {
    if (start.saved_state_node.empty()) return true;
    actor.cause = error(Code::kDataLoss, "node {} does not have what the actor saved there",
                        config_.node.name);
    return false;
  }
  // Where the head does not know of it the connection broke before it heard.
  if (start.saved_state_node.empty()) {
    send(wire::ActorSaved{actor.spec.actor_id, actor.generation});
  }
  return true;
}

void NodeState::on(node_event::StateFetched& event) {
  Actor* actor = find(event.host);
  if (actor == nullptr || !actor->fetching) return close(event.fd);
  actor->fetching = false;
  actor->gpus_by = now_ + config_.gpu_wait;
  if (actor->killed) return close(event.fd);
  if (event.status.ok()) return save(*actor, event.fd);  // settle_gpus starts it
  const Code code = event.status.code() == Code::kNotFound ? Code::kDataLoss : Code::kUnavailable;
  actor->cause = error(code, "node {} could not fetch what the actor had saved: {}",
                       config_.node.name, event.status.to_string());
  gone(*actor);
}

Result<FdHandle> NodeState::saved_state(ActorId actor_id) const {
  const auto found = actors_.find(actor_id);
  if (found == actors_.end() || found->second.saved_state == kNoFd) {
    return error(Code::kNotFound, "node {} keeps nothing that actor {} has saved",
                 config_.node.name, actor_id.brief());
  }
  // What a process still writes is no state to go on from.
  if (found->second.has_process()) {
    return error(Code::kUnavailable, "actor {} still has a process on node {}", actor_id.brief(),
                 config_.node.name);
  }
  return found->second.saved_state;
}

// A node that leaves does so when the actors that go elsewhere have what they saved here; not
// later than a while after nobody reads it any more.
bool NodeState::hands_over_states() const {
  if (!registered_ || !hand_over_until_ || *hand_over_until_ <= now_) return false;
  return std::any_of(actors_.begin(), actors_.end(), [](const auto& entry) {
    return entry.second.saved_state != kNoFd && entry.second.keep_until.has_value();
  });
}

void NodeState::on(node_event::StateRead&) {
  if (hand_over_until_) {
    hand_over_until_ = std::max(*hand_over_until_, now_ + config_.shutdown_grace);
  }
}

}  // namespace troupe::scheduler

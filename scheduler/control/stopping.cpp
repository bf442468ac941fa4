// The end of the whole cluster: actors, then nodes, then the head.

#include "scheduler/control/head_state.h"

namespace troupe::scheduler {

void HeadState::on(PeerId peer, wire::StopCluster& message) {
  reply(peer, message.request_id, {});
  if (stopping()) return;
  stop_reason_ = message.reason.empty() ? "the cluster was stopped" : message.reason;
  stop_by_ = now_.steady + config_.stop_timeout;
  arm(*stop_by_, TimerKind::kStop);
  log_event("cluster_stopping", {}, {}, 0, stop_reason_);
  std::vector<ActorId> waiting;
  for (const auto& [id, actor] : actors_) {
    if (!actor.dead() && !actor.has_process()) waiting.push_back(id);
  }
  for (const ActorId& id : waiting) {
    ActorRecord& actor = actors_.at(id);
    bury(actor, error(Code::kActorDied, "{} was ended: {}", describe(actor), stop_reason_));
  }
  // Those that are away may come back, within their time: they must learn that they are to end.
  for (const auto& [id, node] : nodes_) {
    if (node.peer != 0) send(node.peer, wire::ShutdownNode{stop_reason_});
  }
}

// A node that has stopped everything says so, or closes its connection.
void HeadState::stop_progress() {
  if (ended_) return;
  bool left = false;
  for (const auto& [id, node] : nodes_) {
    left = left || node.peer != 0 || node.info.state != wire::NodeState::kDead;
  }
  if (left && now_.steady < *stop_by_) return;
  ended_ = true;
  commands_.push_back(EndHead{stop_reason_});
}

}  // namespace troupe::scheduler

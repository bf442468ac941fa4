// Whether nodes are heard: leases that heartbeats renew, suspicion of those that are late, death of
// those whose lease has ended.
//
// Two questions, two answers. May a node's actors be started elsewhere? Only the lease says so: the
// node counts the same time from when it sent what the head last answered, which is before the head
// heard it, and ends fence_grace after the lease those actors that must not run twice; the head
// starts them fence_delay after it. (Others run on, and end when their node is back.) How likely a
// silence is plays no part: a node cannot know what the head finds likely. Is a node a good place
// for something new? That is judged by what its heartbeats were like (PhiAccrual), and a wrong
// answer costs a moment.

#include <algorithm>

#include "scheduler/control/head_state.h"

namespace troupe::scheduler {
namespace {

std::int64_t in_milliseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace

void HeadState::on(PeerId peer, wire::Heartbeat& message) {
  NodeRecord* node = node_of(peer);
  if (node == nullptr || node->info.node_id != message.node_id) return;
  if (node->excused_for == node->last_heard) {
    node->beats.begin(now_.steady);  // what made it late was the head: no interval of the node's
  } else {
    node->beats.heard(now_.steady);
  }
  node->last_heard = now_.steady;
  // The node learns by it that the head hears it, also while a disk keeps its decisions waiting.
  commands_.push_back(SendMessage{peer, message, true});
}

// Whatever a node says, it is there. Only a heartbeat renews its lease.
void HeadState::lives(PeerId peer) {
  NodeRecord* node = node_of(peer);
  if (node != nullptr && node->suspected) suspect(*node, false);
}

// One timer a node: an earlier one that is under way looks first, and asks for the next.
void HeadState::look_at(NodeRecord& node, TimePoint at) {
  if (node.look_at > now_.steady && node.look_at <= at) return;
  node.look_at = at;
  arm(at, TimerKind::kNode, node.info.node_id.high, node.info.node_id.low);
}

void HeadState::suspect(NodeRecord& node, bool suspected) {
  const NodeId id = node.info.node_id;
  const std::int64_t silent_ms = in_milliseconds(now_.steady - node.beats.last());
  node.suspected = suspected;
  refresh(node);
  resized_nodes_.insert(id);  // pushed, not journalled: a new head hears the node or does not
  if (suspected) {
    log_event("node_suspected", id, {}, 0,
              fmt::format("node {} has been silent for {} ms, longer than usual: it takes nothing "
                          "new until it is heard",
                          node.info.name, silent_ms));
  } else {
    log_event("node_heard", id, {}, 0,
              fmt::format("node {} is heard again after {} ms", node.info.name, silent_ms));
    look_at(node, now_.steady + node.beats.silence(suspicion_deviations_));
    came_room();
  }
}

wire::NodeInfo HeadState::visible(const NodeRecord& node) {
  wire::NodeInfo info = node.info;
  if (node.suspected && info.state == wire::NodeState::kAlive) {
    info.state = wire::NodeState::kSuspected;
  }
  return info;
}

void HeadState::node_silent_or_gone(NodeRecord& node, TimePoint due) {
  if (node.info.state == wire::NodeState::kDead || due != node.look_at) return;
  const bool away = node.peer == 0;
  if (away ? !node.return_by.has_value() : !config_.heartbeats) return;
  const TimePoint dead_at = away ? *node.return_by : node.last_heard + config_.heartbeat_timeout;
  const TimePoint suspect_at = node.beats.last() + node.beats.silence(suspicion_deviations_);
  const bool may_suspect = !away && !node.suspected;
  const TimePoint next = may_suspect ? std::min(suspect_at, dead_at) : dead_at;
  if (next > now_.steady) return look_at(node, next);
  const bool stood_still = head_stood_still(due) && node.excused_for != node.last_heard;
  if (stood_still) node.excused_for = node.last_heard;
  if (stood_still || node.first_look_for != next) {
    node.first_look_for = next;
    return look_at(node, second_look(due));
  }
  if (dead_at > now_.steady) {
    suspect(node, true);
    return look_at(node, dead_at);
  }
  if (away) {
    // By now its keeper, or the daemon itself, has ended those that must not run twice: nothing to
    // wait for.
    return declare_dead(node, "node_died", "closed its connection and did not come back",
                        Duration::zero());
  }
  const std::int64_t silent_ms = in_milliseconds(now_.steady - node.last_heard);
  declare_dead(node, "node_died", fmt::format("was silent for {} ms", silent_ms),
               config_.fence_delay);
}

}  // namespace troupe::scheduler

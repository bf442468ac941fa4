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

#include "scheduler/control/nodes.h"

namespace troupe::scheduler {
namespace {

std::int64_t in_milliseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

}  // namespace

void Nodes::on(PeerId peer, wire::Heartbeat& message) {
  const NodeRecord* record = of_peer(peer);
  if (record == nullptr || record->id() != message.node_id) return;
  NodeRecord& node = edit(*record);
  if (node.excused_for == node.last_heard) {
    node.beats.begin(context_.now());  // the head made it late: no interval of the node's
  } else {
    node.beats.heard(context_.now());
  }
  renew_lease(node);
  // The node learns by it that the head hears it, also while a disk keeps its decisions waiting.
  context_.send_at_once(peer, message);
}

void Nodes::spoke(PeerId peer) {
  const NodeRecord* node = of_peer(peer);
  if (node != nullptr && node->suspected) suspect(edit(*node), false);
}

// One timer a node: an earlier one that is under way looks first, and asks for the next.
void Nodes::look_at(NodeRecord& node, TimePoint at) {
  if (node.look_at > context_.now() && node.look_at <= at) return;
  node.look_at = at;
  context_.arm(at, TimerKind::kNode, node.id());
}

void Nodes::await(NodeRecord& node, TimePoint until) {
  node.return_by = until;
  look_at(node, until);
  context_.watch_for_pauses(until);
}

void Nodes::excuse_away(Duration pause) {
  for (auto& [id, node] : records_) {
    if (node.return_by) await(node, *node.return_by + pause);
  }
}

void Nodes::suspect(NodeRecord& node, bool suspected) {
  const NodeId id = node.id();
  const std::int64_t silent_ms = in_milliseconds(context_.now() - node.beats.last());
  node.suspected = suspected;
  is_resized(node);  // told, not journalled: a new head hears the node or does not
  if (suspected) {
    context_.log("node_suspected", {id},
                 "node {} has been silent for {} ms, longer than usual: it takes "
                 "nothing new until it is heard",
                 node.info.name, silent_ms);
  } else {
    context_.log("node_heard", {id}, "node {} is heard again after {} ms", node.info.name,
                 silent_ms);
    look_at(node, context_.now() + node.beats.silence(suspicion_deviations_));
    line_.came_room();
  }
}

std::optional<LostNode> Nodes::judge(const Timer& timer) {
  const auto found = records_.find(timer.id<NodeId>());
  if (found == records_.end()) return std::nullopt;
  NodeRecord& node = found->second;
  if (node.dead() || timer.at != node.look_at) return std::nullopt;
  const auto look_again = [&](TimePoint at) {
    look_at(node, at);
    return std::nullopt;
  };
  const bool away = node.peer == 0;
  if (away ? !node.return_by.has_value() : !context_.config().heartbeats) return std::nullopt;
  const TimePoint dead_at =
      away ? *node.return_by : node.last_heard + context_.config().heartbeat_timeout;
  const TimePoint suspect_at = node.beats.last() + node.beats.silence(suspicion_deviations_);
  const bool may_suspect = !away && !node.suspected;
  const TimePoint next = may_suspect ? std::min(suspect_at, dead_at) : dead_at;
  if (next > context_.now()) return look_again(next);
  const bool stood_still = context_.stood_still(timer.at) && node.excused_for != node.last_heard;
  if (stood_still) node.excused_for = node.last_heard;
  if (stood_still || node.first_look_for != next) {
    node.first_look_for = next;
    return look_again(context_.second_look(timer.at));
  }
  if (dead_at > context_.now()) {
    suspect(node, true);
    return look_again(dead_at);
  }
  // By now the keeper of one that is away, or its daemon, has ended the actors that must not run
  // twice: nothing to wait for.
  if (away) return LostNode{node, "closed its connection and did not come back", Duration::zero()};
  const std::int64_t silent_ms = in_milliseconds(context_.now() - node.last_heard);
  return LostNode{node, fmt::format("was silent for {} ms", silent_ms),
                  context_.config().fence_delay};
}

}  // namespace troupe::scheduler

#pragma once
// What the head's state machine takes in, and what it asks to be done.

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/variant.h"
#include "runtime/wire/control_messages.h"
#include "scheduler/control/delta.h"

namespace troupe::scheduler {

// A control connection, numbered by whoever owns the connections; never used twice, never 0.
using PeerId = std::uint64_t;

// The time of an event: monotonic for decisions, the calendar's for what people read.
struct Moment {
  TimePoint steady;
  std::int64_t unix_us = 0;
};

struct MessageArrived {
  PeerId peer = 0;
  wire::ControlMessage message;
};
struct PeerClosed {
  PeerId peer = 0;
};
// Time has come to next_deadline().
struct Tick {};

// The daemon has noticed something that belongs among the cluster's events (event_kinds.h).
struct DaemonNoted {
  std::string kind;
  std::string text;  // one sentence
};

// What ProbeNode found: the node's machine answers, and no process there has the node's port open.
struct NodeGone {
  NodeId node_id;
  wire::Endpoint endpoint;
};

struct Events : Alternatives<MessageArrived, PeerClosed, Tick, DaemonNoted, NodeGone> {};
using Event = Variant<Events>;

struct SendMessage {
  PeerId peer = 0;
  wire::ControlMessage message;
  // No decision stands behind it: it leaves without waiting for the journal, ahead of what waits.
  bool at_once = false;
};
// After what was sent to it before.
struct ClosePeer {
  PeerId peer = 0;
};
// The cluster has stopped: the head ends.
struct EndHead {
  std::string reason;
};

// Find out, for a while, whether a node whose connection closed is there at all (NodeGone).
struct ProbeNode {
  NodeId node_id;
  wire::Endpoint endpoint;
  Duration time{};
};

struct Commands : Alternatives<SendMessage, ClosePeer, EndHead, ProbeNode> {};
using Command = Variant<Commands>;

// `deltas` are to be on stable storage before the first command is carried out that is not to leave
// at once.
struct Outcome {
  std::vector<Command> commands;
  std::vector<Delta> deltas;
};

}  // namespace troupe::scheduler

namespace troupe {
extern template class Variant<scheduler::Events>;
extern template class Variant<scheduler::Commands>;
}  // namespace troupe

#pragma once
// Every time that depends on another one, in one table: what it is, and why it is as long as it is.
// How they depend on each other is written in timing.cpp, as inequalities that check() evaluates.
// Heads and nodes derive their options from the table; where it is changed for one of them, its
// start checks what it was given. Times that stand alone are where they are used.

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "troupe/timeouts.h"

namespace troupe {

struct Timing {
  // --- leases: whether a node is heard ----------------------------------------------------------
  // How often a node says that it is there.
  Duration heartbeat_interval = std::chrono::milliseconds(500);
  // Silence after which a node counts as dead: its lease has ended. Zero: nodes have no leases (an
  // embedded node, whose daemon shares the head's process).
  Duration heartbeat_timeout = std::chrono::milliseconds(2500);
  // How long after its lease a node kills the actors that must not run twice (OnHeadLoss::kFence):
  // an answer of the head that is on its way still arrives.
  Duration fence_grace = std::chrono::milliseconds(500);
  // How long after a node's lease the head starts its actors elsewhere: the slowest node has killed
  // those that must not run twice by then, or is heard again.
  Duration fence_delay = std::chrono::seconds(1);

  // --- who is away and may come back ------------------------------------------------------------
  // A node whose connection closed: then its actors are started elsewhere.
  Duration disconnect_grace = std::chrono::seconds(4);
  // A driver whose connection closed: then its actors end.
  Duration owner_grace = std::chrono::seconds(1);
  // Nodes and drivers after a restart of the head.
  Duration rejoin_grace = std::chrono::seconds(10);
  // How long a node's keeper lets actors run without a daemon: a daemon is started again within.
  Duration keeper_hold = std::chrono::seconds(3);
  // How long a node that was registered looks for its head before it ends itself and all actors.
  // Its first registration may take join_timeout. Both may be anything: a node that ends is safe.
  Duration orphan_timeout = std::chrono::minutes(10);
  Duration join_timeout = std::chrono::seconds(30);
  // Killed processes that hang in the kernel: a keeper that ends waits no longer for them.
  Duration keeper_end_timeout = std::chrono::seconds(10);
  // How long a daemon that starts waits for its keeper, which may be the one before, ending.
  Duration keeper_start_timeout = std::chrono::seconds(15);
  // The same for a keeper that replaces one that was killed: meanwhile no heartbeat is sent.
  Duration keeper_replace_timeout = std::chrono::seconds(1);

  // --- reaching the head ------------------------------------------------------------------------
  // One attempt of a node to connect; one of a driver or actor to connect, and then to be answered.
  Duration node_attempt_timeout = std::chrono::seconds(3);
  Duration client_attempt_timeout = std::chrono::seconds(5);
  // Pauses between attempts double, from the first to the longest.
  Duration node_retry_first = std::chrono::milliseconds(20);
  Duration client_retry_first = std::chrono::milliseconds(50);
  Duration retry_max = std::chrono::seconds(1);
  // How long requests wait for a head that is away before they end with kUnavailable.
  Duration reconnect_timeout = std::chrono::seconds(30);

  // --- answers ----------------------------------------------------------------------------------
  // A request to the head, and a call to an actor, where the caller says nothing else.
  Duration control_timeout = kControlTimeout;
  Duration call_timeout = kCallTimeout;
  // A write of the head's journal. Answers to decisions wait for it, heartbeats do not; then it
  // counts as failed, and the cluster goes on without.
  Duration journal_stall = std::chrono::seconds(10);
  // How long nodes may take to stop their actors when the cluster stops.
  Duration stop_timeout = std::chrono::seconds(10);
  // A watch of an actor that nobody has created waits so long for whoever is about to: a handle may
  // arrive by another way before the request to create its actor does.
  Duration expect_timeout = std::chrono::seconds(2);
  // How long nodes may take to prepare a placement group's bundles; and after a node refused, how
  // much later the next attempt is made.
  Duration prepare_timeout = std::chrono::seconds(5);
  Duration prepare_retry = std::chrono::seconds(1);
  // What waits is tried in the order of asking, and what does not fit lets the next ones try. So
  // that large ones are not overtaken for ever, the first that could fit has turns: after
  // `turn_patience`, room on nodes that could hold it is kept free for it for `turn_hold`, twice as
  // long at each turn, up to `turn_hold_max`. Between turns, for `turn_rest`, the others go on:
  // they may be what those that run are waiting for.
  Duration turn_patience = std::chrono::seconds(5);
  Duration turn_hold = std::chrono::seconds(5);
  Duration turn_hold_max = std::chrono::seconds(80);
  Duration turn_rest = std::chrono::seconds(5);

  // --- on a node --------------------------------------------------------------------------------
  // How long a caller's connection waits for the actor's next process.
  Duration hand_over_timeout = std::chrono::seconds(10);
  // How long an actor's process may leave unread what waits for it: one that is ready; and one that
  // is not, which may be loading its libraries and has not begun to read.
  Duration read_timeout = std::chrono::seconds(10);
  Duration first_read_timeout = std::chrono::minutes(5);
  // How long the first state that an actor's process saves may take to be known to the head before
  // the call that it was saved after is answered all the same: a head that is away holds nobody up
  // for longer. The answer of an actor that must not run twice never leaves before that: its node,
  // cut off from the head, kills it first. So nobody has seen a state that can be lost in silence.
  Duration state_known_timeout = std::chrono::seconds(4);
  // What actors may take to finish when the node shuts down; and how long it then waits for the
  // nodes where they start next to begin, or go on, to fetch what they saved here.
  Duration shutdown_grace = std::chrono::seconds(2);
  // How long an actor without a process may come back, besides its longest back-off: its saved
  // state is kept so long, and the segments of its job.
  Duration keep_segments = std::chrono::seconds(30);
  // How long a GPU's memory may take to be free after the last process. The driver needs
  // milliseconds; what is left after so long belongs to somebody who has not ended.
  Duration gpu_release_timeout = std::chrono::seconds(10);
  // How long an actor waits for GPUs that the head says are free, and that are not yet.
  Duration gpu_wait = std::chrono::seconds(30);
};

inline constexpr Timing kTiming;

// kInvalidArgument: every inequality that does not hold, with the names and values of both sides.
Status check(const Timing& timing);

}  // namespace troupe

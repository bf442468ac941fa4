#pragma once
// The settings of the head's state machine.

#include <cstddef>
#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/base/limits.h"

namespace troupe::scheduler {

struct HeadConfig {
  // Off for an embedded node, whose daemon shares the head's process.
  bool heartbeats = true;
  Duration heartbeat_interval = std::chrono::milliseconds(500);
  // Silence after which a node counts as dead: its lease has ended, and the node stops by itself
  // the actors that must not run twice (NodeConfig::fence_grace later).
  Duration heartbeat_timeout = std::chrono::milliseconds(2500);
  // How unlikely a silence is at which a node is suspected (PhiAccrual):
  // nothing new goes there until it is heard again.
  double suspicion_phi = 8;
  // How long a node whose connection closed may take to come back before its actors are started
  // elsewhere. Longer than one without its daemon (NodeOptions::keeper_hold), or that is cut off
  // (heartbeat_timeout with NodeConfig::fence_grace), lets those run that must not run twice.
  Duration disconnect_grace = std::chrono::seconds(4);
  // After a node was declared dead for its silence: how much later its actors start elsewhere, for
  // the slowest node to have stopped those that must not run twice, or to be heard again.
  Duration fence_delay = std::chrono::seconds(1);
  // How long a driver whose connection closed may take to come back before its actors end.
  Duration owner_grace = std::chrono::seconds(1);
  // After a restart of the head: how long nodes and owners may take to come back.
  Duration rejoin_grace = std::chrono::seconds(10);
  // How long nodes may take to stop their actors when the cluster stops.
  Duration stop_timeout = std::chrono::seconds(10);
  // A watch of an actor that nobody has created waits so long for whoever is about to: a handle may
  // arrive by another way before the request to create its actor does.
  Duration expect_timeout = std::chrono::seconds(2);
  // How long nodes may take to prepare a placement group's bundles; and after a
  // node refused, how much later the next attempt is made.
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
  std::size_t groups_max = 10'000;            // not removed; more are refused with kOverloaded
  std::size_t bundles_max = 1'000;            // of one group
  std::size_t removed_groups_max = 1'000;     // remembered; the oldest are dropped
  std::size_t supervisors_max = 10'000;       // not ended; more are refused with kOverloaded
  std::size_t ended_supervisors_max = 1'000;  // remembered; the oldest are dropped
  std::size_t events_max = 10'000;            // the oldest are dropped
  std::size_t dead_actors_max = 1'000;  // remembered for `troupe actors`; the oldest are dropped
  std::size_t dead_nodes_max = 100;
  std::size_t actors_max = 100'000;          // living; more are refused with kOverloaded
  std::size_t expected_actors_max = 10'000;  // watched and not created; of more it is said at once
  std::size_t jobs_max = 1'000;        // submitted and not ended; more are refused with kOverloaded
  std::size_t ended_jobs_max = 1'000;  // remembered for `troupe jobs`; the oldest are dropped
  // What the journal may hold of what lives (more is refused with kResourceExhausted), of each kind
  // of what has ended, and of events (of both the oldest are dropped).
  std::uint64_t kept_bytes_max = limits::kJournalLivingBytesMax;
  std::uint64_t ended_bytes_max = limits::kJournalEndedBytesMax;
  std::uint64_t event_bytes_max = limits::kJournalEventBytesMax;
};

}  // namespace troupe::scheduler

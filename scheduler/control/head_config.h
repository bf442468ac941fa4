#pragma once
// The settings of the head's state machine.

#include <cstddef>
#include <cstdint>

#include "runtime/base/limits.h"
#include "runtime/base/timing.h"

namespace troupe::scheduler {

struct HeadConfig : Timing {
  // Off for an embedded node, whose daemon shares the head's process.
  bool heartbeats = true;
  // How unlikely a silence is at which a node is suspected (PhiAccrual): nothing new goes there
  // until it is heard again.
  double suspicion_phi = 8;
  std::size_t groups_max = 10'000;            // not removed; more are refused with kOverloaded
  std::size_t bundles_max = 1'000;            // of one group
  std::size_t removed_groups_max = 1'000;     // remembered; the oldest are dropped
  std::size_t supervisors_max = 10'000;       // not ended; more are refused with kOverloaded
  std::size_t ended_supervisors_max = 1'000;  // remembered; the oldest are dropped
  std::size_t events_max = 10'000;            // the oldest are dropped
  std::size_t dead_actors_max = 1'000;  // remembered for `troupe actors`; the oldest are dropped
  std::size_t dead_nodes_max = 100;
  std::size_t actors_max = limits::kActorsMax;  // living; more are refused with kOverloaded
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

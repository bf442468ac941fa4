#include "runtime/base/timing.h"

#include <string>

#include <doctest/doctest.h>

using namespace troupe;
using namespace std::chrono_literals;

namespace {

// A change of one time that breaks one inequality, and how that is said.
struct Broken {
  Duration Timing::*time;
  Duration value;
  const char* said;
};

const Broken kBroken[] = {
    {&Timing::heartbeat_interval, 900ms,
     "3 × heartbeat_interval (900 ms) is to be less than or equal to heartbeat_timeout (2500 ms)"},
    {&Timing::fence_delay, 500ms, "fence_grace (500 ms) is to be less than fence_delay (500 ms)"},
    {&Timing::heartbeat_timeout, 3500ms,
     "heartbeat_timeout (3500 ms) + fence_grace (500 ms) is to be less than disconnect_grace "
     "(4000 ms)"},
    {&Timing::rejoin_grace, 3s,
     "heartbeat_timeout (2500 ms) + fence_grace (500 ms) is to be less than rejoin_grace (3000 "
     "ms)"},
    {&Timing::keeper_hold, 4s,
     "keeper_hold (4000 ms) is to be less than disconnect_grace (4000 ms)"},
    {&Timing::keeper_hold, 11s,
     "keeper_hold (11000 ms) is to be less than rejoin_grace (10000 ms)"},
    {&Timing::keeper_replace_timeout, 2s,
     "keeper_replace_timeout (2000 ms) + heartbeat_interval (500 ms) is to be less than "
     "heartbeat_timeout (2500 ms)"},
    {&Timing::keeper_start_timeout, 10s,
     "keeper_end_timeout (10000 ms) is to be less than keeper_start_timeout (10000 ms)"},
    {&Timing::node_attempt_timeout, 4s,
     "node_attempt_timeout (4000 ms) is to be less than disconnect_grace (4000 ms)"},
    {&Timing::node_attempt_timeout, 9s,
     "node_attempt_timeout (9000 ms) + retry_max (1000 ms) is to be less than rejoin_grace "
     "(10000 ms)"},
    {&Timing::client_attempt_timeout, 9s,
     "client_attempt_timeout (9000 ms) + retry_max (1000 ms) is to be less than rejoin_grace "
     "(10000 ms)"},
    {&Timing::reconnect_timeout, 6s,
     "client_attempt_timeout (5000 ms) + retry_max (1000 ms) is to be less than reconnect_timeout "
     "(6000 ms)"},
    {&Timing::owner_grace, 50ms,
     "client_retry_first (50 ms) is to be less than owner_grace (50 ms)"},
    {&Timing::node_retry_first, 2s,
     "node_retry_first (2000 ms) is to be less than or equal to retry_max (1000 ms)"},
    {&Timing::retry_max, 40ms,
     "client_retry_first (50 ms) is to be less than or equal to retry_max (40 ms)"},
    {&Timing::client_attempt_timeout, 10s,
     "client_attempt_timeout (10000 ms) is to be less than control_timeout (10000 ms)"},
    {&Timing::journal_stall, 10001ms,
     "journal_stall (10001 ms) is to be less than or equal to control_timeout (10000 ms)"},
    {&Timing::stop_timeout, 11s,
     "stop_timeout (11000 ms) is to be less than or equal to control_timeout (10000 ms)"},
    {&Timing::hand_over_timeout, 60s,
     "hand_over_timeout (60000 ms) is to be less than call_timeout (60000 ms)"},
    {&Timing::turn_hold_max, 4s,
     "turn_hold (5000 ms) is to be less than or equal to turn_hold_max (4000 ms)"},
    {&Timing::first_read_timeout, 1s,
     "read_timeout (10000 ms) is to be less than or equal to first_read_timeout (1000 ms)"},
    {&Timing::state_known_timeout, 3s,
     "heartbeat_timeout (2500 ms) + fence_grace (500 ms) is to be less than state_known_timeout "
     "(3000 ms)"},
    {&Timing::keep_segments, 10s,
     "rejoin_grace (10000 ms) is to be less than keep_segments (10000 ms)"},
    {&Timing::gpu_release_timeout, 30s,
     "gpu_release_timeout (30000 ms) is to be less than gpu_wait (30000 ms)"},
};

}  // namespace

TEST_CASE("times that contradict each other are refused with both names and values") {
  CHECK(check(kTiming).ok());
  for (const Broken& broken : kBroken) {
    Timing timing;
    timing.*broken.time = broken.value;
    const Status status = check(timing);
    CAPTURE(std::string(broken.said));
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK_MESSAGE(status.message().find(broken.said) != std::string::npos, status.message());
  }
}

TEST_CASE("nodes that share the head's process have no leases, and so nothing to keep apart") {
  Timing timing;
  timing.heartbeat_timeout = Duration::zero();
  timing.fence_delay = Duration::zero();
  CHECK(check(timing).ok());
  timing.keeper_hold = 5s;
  CHECK(check(timing).message().find("keeper_hold") != std::string::npos);
}

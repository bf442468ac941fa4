#pragma once
// Nodes that stand still for a moment now and then, and at last for good: who is suspected, who is
// declared dead, and when.

#include <cstdint>
#include <string>

namespace troupe::simulation {

struct StallOptions {
  std::uint64_t seed = 1;
  int nodes = 10;
  int minutes = 10;  // of stalls, in virtual time
  int stall_ms = 200;
};

struct StallResult {
  std::string violation;  // empty: nothing
  int stalls = 0;
  int false_suspicions = 0;
  int false_deaths = 0;
  // From the moment at which a node's processes stood still for good: the slowest of all nodes.
  std::int64_t suspected_after_ms = 0;
  std::int64_t dead_after_ms = 0;
  int undetected = 0;
};
StallResult simulate_stalls(const StallOptions& options);

}  // namespace troupe::simulation

#pragma once
// What decides where a task runs, and when (actors/tasks/lease_queue.h).

#include <cstdint>

#include "troupe/clock.h"
#include "troupe/ids.h"

namespace troupe::detail {

// Its fields are the queue's, under the lock of its pool.
struct QueuedTask {
  enum class State : std::uint8_t { kWaiting, kAtLease, kOver };
  State state = State::kOver;  // it is not in the queue, not yet or no more
  // Shares its lease with none: it, or one beside it, may have ended a worker.
  bool alone = false;
  std::uint32_t retries = 0;
  std::uint32_t tries = 0;  // that a worker's death has ended
  std::uint64_t order = 0;  // of all tasks; one that comes back keeps it, and is the next
  std::uint64_t lease = 0;  // where it is
  NodeId prefers;           // where most of its arguments' objects are; empty: anywhere
  TimePoint ends_by{};
};

}  // namespace troupe::detail

#pragma once
// Processes on several nodes that put objects, pass references on, read, let go, and die; nodes
// that are lost; memory that is short; disks that fail. In one thread, all from one seed.
//
// Real: the object stores' state machine (scheduler/objects). Simulated: the processes' side of it,
// sockets (each in order, all against each other in any), shared memory (who wrote which object
// where), disks and transfers.

#include <cstdint>
#include <string>

namespace troupe::simulation {

struct ObjectsOptions {
  std::uint64_t seed = 1;
  int nodes = 0;       // 0: two to five, by the seed
  int steps = 600;     // of what processes do
  int faults = -1;     // processes and nodes that die, disks that fail; -1: some, by the seed
  std::string canary;  // canaries.h; empty: none
  bool trace = false;
};

struct ObjectsResult {
  std::string violation;  // what was wrong, as a sentence; empty: nothing
  std::uint64_t trace_hash = 0;
  std::uint64_t events = 0;
  std::int64_t virtual_ms = 0;
  std::uint64_t puts = 0;
  std::uint64_t passed = 0;  // references from process to process
  std::uint64_t reads = 0;
  std::uint64_t lost = 0;  // reads that failed since a node was lost
  std::uint64_t no_room = 0;
  std::uint64_t spills = 0;
  std::uint64_t restores = 0;
  std::uint64_t fetches = 0;
  std::uint64_t fetches_from_copies = 0;
  std::uint64_t orphans_found = 0;  // of a home that was lost, on a node that had a copy
  std::uint64_t process_deaths = 0;
  std::uint64_t node_losses = 0;
  std::uint64_t cuts = 0;  // of connections between stores

  ObjectsResult& operator+=(const ObjectsResult& other);
};
ObjectsResult simulate_objects(const ObjectsOptions& options);

}  // namespace troupe::simulation

#pragma once
// Drivers and actors that call each other on a cluster that fails, in virtual time and one thread,
// all from one seed.
//
// Real: both halves of the conversations of actors/session, their messages' encoding, the clients'
// sessions with the head, the head's and the nodes' state machines. Simulated: connections,
// processes, methods, the memory that outlives processes, and everything that goes wrong with them.

#include <cstdint>
#include <string>

#include "scheduler_simulation.h"

namespace troupe::simulation {

struct CallsOptions {
  std::uint64_t seed = 1;
  int nodes = 0;         // 0: a few, by the seed
  int actors = 0;        // 0: a dozen or more, by the seed
  int drivers = 0;       // 0: two or three
  int faults = -1;       // of the cluster; -1: as many as fit the size
  int link_faults = -1;  // of connections between callers and actors; -1: likewise
  std::string canary;    // canaries.h; empty: none
  bool trace = false;    // prints what happens
};

struct CallsResult {
  std::string violation;  // what was wrong, as a sentence; empty: nothing
  std::uint64_t trace_hash = 0;
  std::uint64_t events = 0;
  std::int64_t virtual_ms = 0;
  // What happened, to see that the faults find something to break.
  std::uint64_t calls = 0;
  std::uint64_t runs = 0;  // of methods
  std::uint64_t answered = 0;
  std::uint64_t failed = 0;
  std::uint64_t cut_off = 0;  // of those: not by a deadline
  std::uint64_t cancelled = 0;
  std::uint64_t items = 0;           // of streams
  std::uint64_t losses = 0;          // of saved state
  std::uint64_t told_of_losses = 0;  // calls that ended with kDataLoss
  std::uint64_t links_cut = 0;
  std::uint64_t links_slowed = 0;
  std::uint64_t drains = 0;
  SchedulerResult cluster;  // its faults

  // The numbers of several seeds together; violation and hash stay.
  CallsResult& operator+=(const CallsResult& other);
};
CallsResult simulate_calls(const CallsOptions& options);

}  // namespace troupe::simulation

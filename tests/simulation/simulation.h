#pragma once
// A training run on a simulated cluster, in virtual time and one thread, all from one seed.
//
// Real: the head's and the nodes' state machines, the run's, the order in which trainers take
// generations, recoveries and steps. Simulated: messages, processes, memory, collectives, tensors,
// and everything that goes wrong with them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::simulation {

// Faults planted in the simulated surroundings, to see that they are noticed.
enum class Mistake : std::uint8_t {
  kNone,
  kMemoryTooEarly,   // a new process gets the memory before the old one is dead
  kRedoWithoutUndo,  // an optimizer phase goes on without restoring what is half written
  // In worlds that change:
  kGoesWhenHeard,     // a machine goes when its leave is known, before a step stands without it
  kNamesAfterNumber,  // a machine that takes a lost one's place counts as that one, with its states
  kDropsWhenTaken,    // the world before is forgotten before a step stands in the next one
};
inline constexpr int kMistakes = 6;
std::string_view mistake_name(Mistake mistake);

struct Options {
  std::uint64_t seed = 1;
  // The world changes: `nodes` machines that there may be come, leave and are lost.
  bool elastic = false;
  int nodes = 8;
  int ranks_per_node = 8;
  int steps = 20;
  int faults = 12;
  Mistake mistake = Mistake::kNone;
  std::string canary;  // canaries.h; empty: none
  bool trace = false;  // prints what happens
};

struct Result {
  std::string violation;  // what was wrong, as a sentence; empty: nothing
  std::uint64_t trace_hash = 0;
  std::uint64_t events = 0;
  std::int64_t virtual_ms = 0;
  // What happened, to see that the faults find something to break.
  int generations = 0;
  int kills = 0;      // of trainers, from outside or inside a chunk
  int loads = 0;      // generations that began from a checkpoint
  int copies = 0;     // states that ranks got from others that hold the same
  int takeovers = 0;  // states that ranks got from others that kept a copy
  int finishes = 0;   // generations that finished a step left behind
  int discards = 0;   // generations that computed a step again
  int head_crashes = 0;
  int head_stalls = 0;
  int controller_kills = 0;
  int daemon_kills = 0;
  int node_losses = 0;  // crashes and partitions
  int joins = 0;        // of machines, while the run goes on
  int leaves = 0;       // machines that went since they were let go
  int resizes = 0;      // of the world
  int hand_overs = 0;   // states that ranks got from a world before

  // The numbers of several runs together; violation and hash stay.
  Result& operator+=(const Result& other);
};
Result simulate(const Options& options);

}  // namespace troupe::simulation

#pragma once
// Which rank keeps a copy of whose state, so that the loss of a machine loses none: pure.
//
// A rank's *buddy* is a rank of another machine. It keeps a copy of what the rank updates and
// executes the same update on the same reduced gradients, step by step
// (tests/models/step_replicas.pml). Every rank has one buddy and is one rank's buddy, so that each
// machine serves as much as it is served. The idea of a partner in another failure domain: Gemini
// (SOSP'23), FTI, SCR.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe::train {

class BuddyPlan {
 public:
  // Nobody keeps anything.
  BuddyPlan() = default;
  // `states`, by rank: those with equal numbers hold the same bytes (Mesh::replicas()). `machines`,
  // by rank: those with equal numbers are lost together. All ranks make the same plan.
  static BuddyPlan make(std::span<const int> states, std::span<const std::uint64_t> machines);
  // The same with buddies in another failure domain, which is several machines that may be lost
  // together (`domains`, by rank), where that leaves no state alone; else on another machine.
  static BuddyPlan make(std::span<const int> states, std::span<const std::uint64_t> machines,
                        std::span<const std::uint64_t> domains);

  bool none() const { return buddy_of_.empty(); }
  // Why none() is; a clause.
  const std::string& why_none() const { return why_none_; }
  // Some state lies on one of several machines alone, and nobody keeps a copy of it.
  bool leaves_some_alone() const { return leaves_some_alone_; }
  // Nobody needs to keep a copy: every state lies on several machines.
  bool lies_on_several() const { return lies_on_several_; }
  // Buddies are in different failure domains.
  bool across_domains() const { return across_domains_; }
  // Who keeps the rank's state, and whose state the rank keeps; −1: nobody, nobody's.
  int buddy_of(int rank) const { return none() ? -1 : at(buddy_of_, rank); }
  int kept_by(int rank) const { return none() ? -1 : at(kept_by_, rank); }
  // By rank; empty: nobody keeps anything.
  std::span<const int> kept() const { return kept_by_; }
  // When a rank sends to its buddy, so that nobody sends and receives at once: 0, 1 or 2.
  int turn_of(int rank) const { return at(turns_, rank); }
  static constexpr int kTurns = 3;

 private:
  static int at(const std::vector<int>& by_rank, int rank) {
    return by_rank[static_cast<std::size_t>(rank)];
  }

  std::vector<int> buddy_of_, kept_by_, turns_;
  std::string why_none_ = "nothing was planned";
  bool leaves_some_alone_ = false;
  bool lies_on_several_ = false;
  bool across_domains_ = false;
};

}  // namespace troupe::train

#pragma once
// The machines of a run whose world may change: they come, announce that they leave, and go.

#include <set>

#include "cluster.h"
#include "run.h"

namespace troupe::simulation {

class Machines {
 public:
  Machines(Cluster& cluster, Run& run) : cluster_(cluster), world_(cluster.world()), run_(run) {}

  // One that is not there comes. Which; -1: all are there.
  int join();
  // One that is there asks to leave, and goes once it is let go.
  void leave();
  // As many stay as the run needs.
  bool enough() const;
  // Those that the run does without go, and come again.
  void start_anew(const std::vector<std::int32_t>& machines);

 private:
  // It asks again and again: one that is lost meanwhile may make it needed.
  void ask(int machine, std::uint64_t boot);
  void answered(int machine, bool may, bool needed);
  void go(int machine, std::uint64_t boot);
  int one_of(bool up);

  Cluster& cluster_;
  World& world_;
  Run& run_;
  std::set<int> leaving_;
  std::set<int> coming_again_;  // of them, or gone
};

}  // namespace troupe::simulation

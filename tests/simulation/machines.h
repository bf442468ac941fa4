#pragma once
// The machines of a run whose world may change: they come, announce that they leave, and go.

#include <set>

#include "cluster.h"
#include "run.h"

namespace troupe::simulation {

class Machines {
 public:
  Machines(Cluster& cluster, Run& run) : cluster_(cluster), world_(cluster.world()), run_(run) {}

  // One that is not there comes.
  void join();
  // One that is there asks to leave, and goes once it is let go.
  void leave();
  // As many stay as the run needs.
  bool enough() const;

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
};

}  // namespace troupe::simulation

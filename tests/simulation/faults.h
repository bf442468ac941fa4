#pragma once
// What goes wrong in a simulated run: at random moments, one after another and several at once.

#include "cluster.h"
#include "machines.h"
#include "run.h"

namespace troupe::simulation {

class Faults {
 public:
  Faults(Cluster& cluster, Run& run)
      : cluster_(cluster), world_(cluster.world()), run_(run), machines_(cluster, run) {}

  void begin();
  // All have struck, and what they broke for a while is whole again.
  bool over() const { return left_ == 0 && lasting_ == 0; }

 private:
  void next();
  void strike();
  void kill_trainers(std::size_t count);
  void stop_trainer();
  void kill_controller();
  void cut(int node);
  void part(int node, Duration time);
  void crash_node(int node);
  void for_a_while(Duration time, std::function<void()> mend);

  Cluster& cluster_;
  World& world_;
  Run& run_;
  Machines machines_;
  int left_ = 0;
  int lasting_ = 0;
};

}  // namespace troupe::simulation

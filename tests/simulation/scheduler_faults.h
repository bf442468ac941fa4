#pragma once
// What goes wrong in the scheduler's simulation, and when.

#include <functional>
#include <memory>
#include <vector>

#include "cluster.h"
#include "sim_driver.h"

namespace troupe::simulation {

class SchedulerFaults {
 public:
  SchedulerFaults(Cluster& cluster, SchedulerResult& result,
                  const std::vector<std::unique_ptr<SimDriver>>& drivers)
      : cluster_(cluster), world_(cluster.world()), result_(result), drivers_(drivers) {}

  // `count` of them, spread over `time`; and of the nodes, `nodes_lost` crash for good.
  void begin(int count, int nodes_lost, Duration time);
  // All have struck, and what they broke for a while is whole again.
  bool over() const { return left_ == 0 && lasting_ == 0; }

 private:
  void at_random(Duration time, std::function<void()> strike);
  void for_a_while(Duration time, std::function<void()> mend);
  int any_node();
  SimDriver* any_driver();
  void strike();
  void kill_processes();
  void lose_node();
  void crash_node();
  void cut_nodes();
  void freeze_node();
  void crash_head();
  void bring_head_back();

  Cluster& cluster_;
  World& world_;
  SchedulerResult& result_;
  const std::vector<std::unique_ptr<SimDriver>>& drivers_;
  int left_ = 0;
  int lasting_ = 0;
};

}  // namespace troupe::simulation

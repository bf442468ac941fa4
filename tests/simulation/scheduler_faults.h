#pragma once
// What goes wrong in the scheduler's simulation, and when.

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "cluster.h"
#include "scheduler_simulation.h"

namespace troupe::simulation {

// A driver, as far as it can fail.
class FaultyClient {
 public:
  virtual ~FaultyClient() = default;
  virtual bool ended() const = 0;
  virtual void break_connection() = 0;
  // Its process ends.
  virtual void end() = 0;
};

class SchedulerFaults {
 public:
  using AnyClient = std::function<FaultyClient*()>;
  SchedulerFaults(Cluster& cluster, SchedulerResult& result, AnyClient any_client)
      : cluster_(cluster),
        world_(cluster.world()),
        result_(result),
        any_client_(std::move(any_client)) {}

  // Spread over `time`.
  struct Plan {
    int faults = 0;      // of all kinds
    int kills = 0;       // of processes, besides
    int nodes_lost = 0;  // crash for good
    Duration time{};
  };
  void begin(const Plan& plan);
  // All have struck, and what they broke for a while is whole again.
  bool over() const { return left_ == 0 && lasting_ == 0; }

 private:
  void at_random(Duration time, std::function<void()> strike);
  void for_a_while(Duration time, std::function<void()> mend);
  int any_node();
  void strike();
  void kill_process();
  void kill_processes();
  void lose_node();
  void crash(int node);
  void crash_node();
  void cut_nodes();
  void freeze_node();
  void crash_head();
  void stall_head();
  void bring_head_back();

  Cluster& cluster_;
  World& world_;
  SchedulerResult& result_;
  const AnyClient any_client_;
  std::set<int> lost_;  // nodes, for good
  int left_ = 0;
  int lasting_ = 0;
};

}  // namespace troupe::simulation

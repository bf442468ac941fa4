#pragma once
// What must hold of the scheduler, besides what the states and the cluster check themselves: gangs,
// generations, restart budgets, owners at every decision; and where everything is in the end.

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cluster.h"
#include "sim_driver.h"

namespace troupe::simulation {

class SchedulerOracle {
 public:
  explicit SchedulerOracle(World& world) : world_(world) {}
  // Before anything happens; both outlive it.
  void watch(Cluster& cluster, const std::vector<std::unique_ptr<SimDriver>>& drivers) {
    cluster_ = &cluster;
    drivers_ = &drivers;
  }

  // These actors are to be placed together at first.
  void asked_for_gang(const std::vector<ActorId>& ids);
  void decided(const scheduler::HeadState& head, const std::vector<scheduler::Delta>& deltas);
  void head_started(const scheduler::HeadState& head);

  // Nothing when all is where it should be; else the first thing that is not. For a cluster in
  // which nothing fails any more.
  std::string unsettled() const;
  // The same for one whose drivers have all ended, and which has nothing left to do.
  std::string uncleared() const;

 private:
  // Where the newest process of an actor is, or was.
  struct Place {
    std::uint64_t generation = 0;
    NodeId node_id;
  };
  void check_place(const wire::ActorInfo& info);
  void check_gang(const scheduler::HeadState& head, const std::vector<ActorId>& members) const;
  void check_group(const scheduler::HeadState& head, const wire::PlacementGroupInfo& group) const;
  void restarted(const scheduler::HeadState& head, const wire::EventRecord& event);
  void owner_gone(const wire::EventRecord& event) const;
  std::string unsettled_actor(const scheduler::ActorRecord& actor) const;
  std::string unsettled_node(int node) const;
  std::string unsettled_group(const scheduler::GroupRecord& group) const;
  // What nodes are to hold for placement groups, as the head says.
  using Wanted = std::map<NodeId, std::map<GroupId, wire::Reservation>>;
  Wanted wanted_reservations() const;
  std::string unsettled_reservations(int node, const Wanted& wanted) const;
  std::string unsettled_line() const;

  World& world_;
  Cluster* cluster_ = nullptr;
  const std::vector<std::unique_ptr<SimDriver>>* drivers_ = nullptr;
  std::deque<std::vector<ActorId>> gangs_;
  std::map<ActorId, const std::vector<ActorId>*> gang_of_;
  std::map<ActorId, Place> places_;
  std::map<ActorId, std::vector<std::int64_t>> restarts_;
};

}  // namespace troupe::simulation

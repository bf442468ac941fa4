#pragma once
// A driver's program in the scheduler's simulation: what it asks of the head through the real
// HeadSession, and calls to the actors it watches.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster.h"
#include "scheduler_faults.h"
#include "scheduler_simulation.h"
#include "sim_head_client.h"
#include "sim_worker.h"

namespace troupe::simulation {

class SimDriver final : public FaultyClient {
 public:
  SimDriver(Cluster& cluster, SchedulerResult& result, int number);

  const ClientId& id() const { return id_; }
  const JobId& job() const { return job_; }
  const std::string& name() const { return name_; }
  // Watches the cluster's nodes.
  void watch_nodes();

  // --- requests: each has one answer
  // Watches them, too, once they are accepted.
  void create(std::vector<wire::ActorSpec> specs, bool gang, bool no_wait);
  void kill(ActorId actor, bool allow_restart, std::int64_t grace_ms);
  void list();
  void create_group(wire::PlacementGroupSpec spec);
  void remove_group(GroupId group);
  void end_job();
  // Calls the actor where it is known to be, if it is known to live.
  void call(ActorId actor);
  // Gives up its watch of the actor, and watches it anew: by its name, where it has one.
  void watch_again(ActorId actor);

  // --- faults
  void break_connection() override { client_.break_connection(); }
  // Its process ends, and takes the actors along that are not detached.
  void end() override;

  bool ended() const override { return ended_; }
  // When its connection broke; nothing while it has one.
  std::optional<TimePoint> away_since() const { return client_.away_since(); }
  // Those that it created and that were accepted.
  const std::vector<ActorId>& actors() const { return actors_; }
  const std::vector<wire::PlacementGroupSpec>& groups() const { return groups_; }
  // Of those, the ones that it has not removed, and has not heard to be removed.
  const std::vector<wire::PlacementGroupSpec>& usable_groups() const { return usable_groups_; }
  // Nothing, or what it waits for.
  std::string waits_for() const;
  // Nothing, or what it has not heard of what it watches.
  std::string unheard(const scheduler::HeadState& head) const;

 private:
  using Answer = troupe::Result<wire::ControlMessage>;
  struct ActorView {
    wire::ActorInfo info;
    scheduler::WatchId watch = 0;
  };

  scheduler::HeadClientOptions options();
  void created(const std::vector<ActorId>& ids, const Status& status);
  void group_created(const wire::PlacementGroupSpec& spec, const Status& status);
  void watch(ActorId actor, const std::string& name = {});
  void watch(GroupId group);
  void updated(const wire::ActorInfo& info);
  void updated(const wire::PlacementGroupInfo& info);
  void forget_usable(GroupId group);
  void call_over(const std::shared_ptr<CallRecord>& call, bool answered);

  Cluster& cluster_;
  World& world_;
  SchedulerResult& result_;
  const ClientId id_;
  const JobId job_;
  const std::string name_;
  SimHeadClient client_;
  bool ended_ = false;
  std::vector<ActorId> actors_;
  std::map<ActorId, std::string> names_;
  std::map<ActorId, ActorView> views_;
  std::vector<wire::PlacementGroupSpec> groups_;
  std::vector<wire::PlacementGroupSpec> usable_groups_;
  std::map<GroupId, wire::PlacementGroupInfo> group_views_;
  std::map<NodeId, wire::NodeState> nodes_;
  std::vector<std::shared_ptr<CallRecord>> calls_;
};

}  // namespace troupe::simulation

#pragma once
// A driver in the scheduler's simulation: what scheduler/client does around its connection to the
// head, and calls to the actors it watches.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cluster.h"
#include "scheduler_simulation.h"
#include "sim_worker.h"

namespace troupe::simulation {

class SimDriver {
 public:
  SimDriver(Cluster& cluster, SchedulerResult& result, int number);

  const ClientId& id() const { return id_; }
  const JobId& job() const { return job_; }
  const std::string& name() const { return name_; }
  void begin() { connect(); }

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

  // --- faults
  void break_connection();
  // Its process ends, and takes the actors along that are not detached.
  void end();

  bool ended() const { return ended_; }
  // When its connection broke; nothing while it has one.
  std::optional<TimePoint> away_since() const { return away_since_; }
  // Those that it created and that were accepted.
  const std::vector<ActorId>& actors() const { return actors_; }
  const std::vector<wire::PlacementGroupSpec>& groups() const { return groups_; }
  // Of those, the ones that it has not removed, and has not heard to be removed.
  const std::vector<wire::PlacementGroupSpec>& usable_groups() const { return usable_groups_; }
  // Nothing, or what it waits for.
  std::string waits_for() const;
  // Where what it knows of an actor is not `truth`.
  bool knows(const wire::ActorInfo& truth) const;
  bool knows(const wire::PlacementGroupInfo& truth) const;

 private:
  struct Request {
    wire::ControlMessage message;
    std::function<void(const Status&)> done;
    TimePoint asked;
    bool was_sent = false;
  };

  void connect();
  void connected();
  void lost();
  void received(const wire::ControlMessage& message);
  void answered(std::uint64_t request_id, const Status& status);
  void updated(const wire::ActorInfo& info);
  void ask(wire::ControlMessage message, std::function<void(const Status&)> done);
  void updated(const wire::PlacementGroupInfo& info);
  void watch(ActorId actor);
  void watch(GroupId group);
  void forget_usable(GroupId group);
  void call_over(const std::shared_ptr<CallRecord>& call, bool answered);

  Cluster& cluster_;
  World& world_;
  SchedulerResult& result_;
  const ClientId id_;
  const JobId job_;
  const std::string name_;
  LinkPtr link_;
  std::uint64_t links_ = 0;
  bool introduced_ = false;
  bool reconnects_ = false;
  bool ended_ = false;
  Duration back_off_;
  std::optional<TimePoint> away_since_;
  std::uint64_t next_request_ = 1;
  std::uint64_t hello_ = 0;
  std::map<std::uint64_t, Request> requests_;
  std::vector<ActorId> actors_;
  std::map<ActorId, wire::ActorInfo> views_;
  std::vector<wire::PlacementGroupSpec> groups_;
  std::vector<wire::PlacementGroupSpec> usable_groups_;
  std::map<GroupId, wire::PlacementGroupInfo> group_views_;
  std::vector<std::shared_ptr<CallRecord>> calls_;
};

}  // namespace troupe::simulation

#pragma once
// What the head remembers of each node, actor, placement group, client and connection.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/control/event.h"
#include "scheduler/control/phi_accrual.h"
#include "scheduler/policy/placement.h"

namespace troupe::scheduler {

// What an event for people is about.
struct EventSubject {
  NodeId node_id;
  ActorId actor_id;
  std::uint64_t generation = 0;
};

// A process of an actor: what holds a lease.
using LeaseKey = std::pair<ActorId, std::uint64_t>;

// A bundle of a placement group: what holds a reservation.
using BundleKey = std::pair<GroupId, std::int32_t>;

// A bundle that is reserved on a node.
struct BundleLease {
  wire::Resources total;
  wire::Resources available;  // what no lease inside holds
};

struct NodeRecord {
  // `available` is kept equal to total minus the bundles and the leases outside of them.
  wire::NodeInfo info;
  PeerId peer = 0;  // 0: not connected
  TimePoint last_heard;
  PhiAccrual beats;         // when its heartbeats came
  bool suspected = false;   // silent for longer than they let expect: takes nothing new
  TimePoint look_at{};      // when its timer is due
  TimePoint excused_for{};  // the last_heard of a silence in which the head itself stood still
  // When it fell due to be judged for a silence, where it was looked at once since.
  TimePoint first_look_for{};
  // Labels for which no number was free (first_free_of()), with their bounds.
  std::map<std::string, std::int64_t> unnumbered;
  // Lost some of what it had, which is held still: what comes free is gone until the total is this.
  std::optional<wire::Resources> shrinks_to;
  std::set<std::string> packages;  // that it has, by hash (packages.cpp)
  // Not connected: until when it may come back before it counts as dead.
  std::optional<TimePoint> return_by;
  std::map<LeaseKey, wire::Resources> leases;
  std::map<BundleKey, BundleLease> bundles;
  // CPUs that holders of leases do without, since they only wait; and whether they want them back.
  struct LentCpus {
    std::int64_t amount = 0;
    bool wanted_back = false;
  };
  std::map<LeaseKey, LentCpus> lent_cpus;
  // Leases that are taken from a bundle. One whose bundle is released stays, outside, until its
  // process group is gone.
  std::map<LeaseKey, BundleKey> inside;

  using Forgotten = NodeForgotten;
  NodeId id() const { return info.node_id; }
  NodeKnown delta() const { return {info}; }
  bool dead() const { return info.state == wire::NodeState::kDead; }
  bool usable() const { return peer != 0 && info.state == wire::NodeState::kAlive && !suspected; }
  // Whether the node is to have less of something that `amount` has some of.
  bool lost_some(const wire::Resources& amount) const;
  // Those with a bundle here.
  std::set<GroupId> groups() const;
};

// What is journalled of an actor, and what follows from it or lives as long as the head.
struct ActorRecord : ActorChanged {
  wire::ActorSpec spec;
  std::uint64_t gang = 0;
  // The highest that a node ever said it runs: a head that forgot its last decisions (a full disk)
  // must not give a number again.
  std::uint64_t generation_seen = 0;
  std::uint64_t lending = 0;             // the generation of which the process lends its CPUs
  std::optional<TimePoint> restart_at;   // kRestarting and waiting for its back-off
  TimePoint not_before{};                // … and no next process before this
  std::optional<wire::ExitStatus> exit;  // of its last process
  std::uint64_t kept_bytes = 0;          // of the journal, as last counted (journal_room.h)

  using Forgotten = ActorForgotten;
  ActorId id() const { return spec.actor_id; }
  EventSubject subject() const { return {info.node_id, id(), info.generation}; }
  LeaseKey lease() const { return {spec.actor_id, lease_generation}; }
  const ActorChanged& delta() const { return *this; }
  bool in_group() const { return !spec.placement_group.empty(); }
  bool dead() const { return info.state == wire::ActorState::kDead; }
  bool ended() const { return dead(); }
  // Dead, or told to end for good.
  bool ending() const { return dead() || (stopping && !restart_after_stop); }
  bool has_process() const {
    return info.state == wire::ActorState::kStarting || info.state == wire::ActorState::kAlive;
  }
};

struct GroupRecord : GroupChanged {  // its `bundles` have the nodes of the last reservation
  wire::PlacementGroupSpec spec;
  bool waiting = false;                // in the line; its queue_order stays when it is not
  std::set<NodeId> awaited;            // preparing: who has not answered
  std::optional<TimePoint> answer_by;  // preparing: until when
  std::optional<TimePoint> retry_at;   // not in the line until then

  using Forgotten = GroupForgotten;
  GroupId id() const { return spec.group_id; }
  const GroupChanged& delta() const { return *this; }
  BundleKey bundle(std::size_t index) const { return {id(), static_cast<std::int32_t>(index)}; }
  // What it holds, or is to hold, on one node.
  wire::Resources on_node(NodeId node_id) const;
  bool removed() const { return info.state == wire::PlacementGroupState::kRemoved; }
  bool ended() const { return removed(); }
  bool created() const { return info.state == wire::PlacementGroupState::kCreated; }
  bool reserved() const { return created() || info.state == wire::PlacementGroupState::kPreparing; }
};

// A job that was submitted. Its program is an actor's record.
struct JobRecord {
  wire::JobInfo info;  // without what is pending and alive: that follows from the actors

  using Forgotten = JobForgotten;
  JobId id() const { return info.job_id; }
  JobKnown delta() const { return {info}; }
  bool ended() const { return info.ended(); }
};

struct SupervisorRecord : SupervisorChanged {
  wire::SupervisorSpec spec;
  std::map<std::uint64_t, wire::SupervisorMember> members;  // living, in the order of being added
  // Actors whose barrier this is. They get their next processes when the last of them is gone.
  std::set<ActorId> restarting;

  using Forgotten = SupervisorForgotten;
  SupervisorId id() const { return spec.supervisor_id; }
  const SupervisorChanged& delta() const { return *this; }
  bool ended() const { return info.state == wire::SupervisorState::kEnded; }
};

struct ClientRecord {
  ClientId client_id;
  JobId job_id;
  std::string name;
  std::string kind;
  std::string namespace_name;
  wire::Work work;                     // as it said last
  PeerId peer = 0;                     // 0: not connected
  std::optional<TimePoint> return_by;  // not connected: until when it keeps its actors
};

// What clients have done since the head began, as far as they have said so.
struct WorkDone {
  std::uint64_t tasks = 0;
  std::uint64_t tasks_failed = 0;
  std::uint64_t tasks_again = 0;
  std::uint64_t pipeline_items = 0;
};

// A control connection and who is at its other end.
struct PeerRecord {
  ClientId client_id;  // one of the two is set once it said who it is
  NodeId node_id;
  bool watches_nodes = false;
  bool watches_amounts = true;  // … and when only what is free of them changes
};

// What people call it: "Counter rank 2 'name'", "supervisor 1a2b3c4d".
std::string describe(const ActorRecord& actor);
std::string describe(const GroupRecord& group);
std::string describe(const SupervisorRecord& supervisor);
std::string describe(const ClientRecord& client);
std::string describe(const JobRecord& job);

// Refusals that are the same everywhere.
template <typename IdType>
Status not_found(const char* kind, const IdType& id) {
  return error(Code::kNotFound, "there is no {} {}", kind, id.to_string());
}
inline Status not_a_client(const char* does) {
  return error(Code::kFailedPrecondition, "only a client {}", does);
}

// Whether the budget allows one more restart; forgets those that do not count any more.
bool may_restart(const wire::RestartPolicy& policy, std::int64_t now_unix_us,
                 std::vector<std::int64_t>& restarts_unix_us);
// How long the next process waits: doubles with each restart that still counts.
Duration back_off(const wire::RestartPolicy& policy, std::size_t restarts);

}  // namespace troupe::scheduler

#pragma once
// What the head remembers of each node, actor, placement group, client and connection.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/control/event.h"
#include "scheduler/control/phi_accrual.h"
#include "scheduler/policy/placement.h"

namespace troupe::scheduler {

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
  // Lost some of what it had, which is held still: what comes free is gone until the total is this.
  std::optional<wire::Resources> shrinks_to;
  // Not connected: until when it may come back before it counts as dead.
  std::optional<TimePoint> return_by;
  std::map<LeaseKey, wire::Resources> leases;
  std::map<BundleKey, BundleLease> bundles;
  // Leases that are taken from a bundle. One whose bundle is released stays, outside, until its
  // process group is gone.
  std::map<LeaseKey, BundleKey> inside;

  bool usable() const { return peer != 0 && info.state == wire::NodeState::kAlive && !suspected; }
};

struct ActorRecord {
  wire::ActorSpec spec;
  wire::ActorInfo info;
  std::uint64_t gang = 0;
  std::uint64_t lease_generation = 0;
  // The highest that a node ever said it runs: a head that forgot its last decisions (a full disk)
  // must not give a number again. Not journalled.
  std::uint64_t generation_seen = 0;
  std::uint64_t queue_order = 0;
  bool started = false;
  bool stopping = false;
  bool restart_after_stop = false;
  std::vector<std::int64_t> restarts_unix_us;
  std::optional<TimePoint> restart_at;   // kRestarting and waiting for its back-off
  std::optional<wire::ExitStatus> exit;  // of its last process; not journalled
  TimePoint not_before{};                // … and no next process before this
  // The supervisor that restarts it with others: kRestarting, it waits for the last of them to be
  // gone.
  SupervisorId barrier;
  bool moving = false;  // its next process is no restart of the budget: its node is drained
  // What it saved on info.saved_state_node is lost, and it has saved nothing since.
  bool state_lost = false;
  std::set<PeerId> watchers;

  bool in_group() const { return !spec.placement_group.empty(); }
  bool dead() const { return info.state == wire::ActorState::kDead; }
  // Dead, or told to end for good.
  bool ending() const { return dead() || (stopping && !restart_after_stop); }
  bool has_process() const {
    return info.state == wire::ActorState::kStarting || info.state == wire::ActorState::kAlive;
  }
};

struct GroupRecord {
  wire::PlacementGroupSpec spec;
  // Without what is available; `bundles` have the nodes of the last reservation.
  wire::PlacementGroupInfo info;
  std::uint64_t queue_order = 0;       // its place in line, also while it does not wait
  bool waiting = false;                // in the queue
  bool was_created = false;            // it was whole once
  std::set<NodeId> awaited;            // preparing: who has not answered
  std::optional<TimePoint> answer_by;  // preparing: until when
  std::optional<TimePoint> retry_at;   // not in the queue until then
  std::set<ActorId> actors;            // the living ones that name it
  std::set<PeerId> watchers;

  bool removed() const { return info.state == wire::PlacementGroupState::kRemoved; }
  bool created() const { return info.state == wire::PlacementGroupState::kCreated; }
  bool reserved() const { return created() || info.state == wire::PlacementGroupState::kPreparing; }
};

// A job that was submitted. Its program is an actor's record.
struct JobRecord {
  wire::JobInfo info;  // without what is pending and alive: that follows from the actors

  // (jobs.cpp)
};

struct SupervisorRecord {
  wire::SupervisorSpec spec;
  wire::SupervisorInfo info;                                // without members
  std::map<std::uint64_t, wire::SupervisorMember> members;  // living, in the order of being added
  std::vector<std::int64_t> restarts_unix_us;
  // Actors whose barrier this is. They get their next processes when the last of them is gone.
  std::set<ActorId> restarting;
  std::set<PeerId> watchers;

  bool ended() const { return info.state == wire::SupervisorState::kEnded; }
};

// Those of a kind that have ended and are remembered for people, oldest first, and how much of the
// journal they take.
template <typename Id>
class Ended {
 public:
  struct Entry {
    Id id;
    std::uint64_t bytes = 0;
  };
  void add(Id id, std::uint64_t bytes) {
    entries_.push_back({id, bytes});
    bytes_ += bytes;
  }
  void erase(Id id) {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return entry.id == id; });
    if (found == entries_.end()) return;
    bytes_ -= found->bytes;
    entries_.erase(found);
  }
  // Whether the oldest is to go.
  bool too_many(std::size_t count_max, std::uint64_t bytes_max) const {
    return !entries_.empty() && (entries_.size() > count_max || bytes_ > bytes_max);
  }
  Id oldest() const { return entries_.front().id; }
  std::size_t size() const { return entries_.size(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  std::deque<Entry> entries_;
  std::uint64_t bytes_ = 0;
};

// Where something stands in the line of those that wait for room: larger priorities first, then in
// the order of asking.
struct QueueKey {
  std::int64_t minus_priority = 0;
  std::uint64_t order = 0;
  friend auto operator<=>(const QueueKey&, const QueueKey&) = default;
};

// What something that waits wishes for. Where it cannot be had in a pass over the line, it cannot
// be had by those behind that wish the same.
struct Wish {
  struct Part {
    wire::Resources need;
    std::optional<NodeId> affinity;
    wire::LabelSelector selector;
    GroupId in_group;
    std::int32_t bundle_index = -1;
    friend auto operator<=>(const Part&, const Part&) = default;
  };
  wire::PlacementStrategy strategy = wire::PlacementStrategy::kPack;
  std::vector<Part> parts;
  GroupId own;  // a group that was reserved before has a wish of its own: its actors hold places
  friend auto operator<=>(const Wish&, const Wish&) = default;
};
// Those that wait, by what they wish for.
using Wishes = std::map<Wish, std::set<QueueKey>>;

// A gang, one actor, or a placement group that waits.
struct QueueEntry {
  std::vector<ActorId> members;
  GroupId group;  // empty: it is actors
  TimePoint since;
  std::optional<Wishes::iterator> wish;  // nothing until a pass has looked at it
  // The turn for which `kept_free` was chosen (waiting_line.cpp), 0 for none.
  std::uint64_t turn = 0;
  KeptFree kept_free;
};

struct ClientRecord {
  ClientId client_id;
  JobId job_id;
  std::string name;
  std::string kind;
  std::string namespace_name;
  PeerId peer = 0;                     // 0: not connected
  std::optional<TimePoint> return_by;  // not connected: until when it keeps its actors
};

// A control connection and who is at its other end.
struct PeerRecord {
  ClientId client_id;  // one of the two is set once it said who it is
  NodeId node_id;
  std::set<ActorId> watched_actors;
  std::set<GroupId> watched_groups;
  std::set<SupervisorId> watched_supervisors;
  bool watches_nodes = false;
  bool watches_amounts = true;  // … and when only what is free of them changes
};

}  // namespace troupe::scheduler

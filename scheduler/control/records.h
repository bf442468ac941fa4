#pragma once
// What the head remembers of each node, actor, client and connection.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/control/event.h"
#include "scheduler/control/phi_accrual.h"

namespace troupe::scheduler {

// A process of an actor: what holds a lease.
using LeaseKey = std::pair<ActorId, std::uint64_t>;

struct NodeRecord {
  wire::NodeInfo info;  // `available` is kept equal to total minus the leases
  PeerId peer = 0;      // 0: not connected
  TimePoint last_heard;
  PhiAccrual beats;         // when its heartbeats came
  bool suspected = false;   // silent for longer than they let expect: takes nothing new
  TimePoint look_at{};      // when its timer is due
  TimePoint excused_for{};  // the last_heard of a silence in which the head itself stood still
  // Not connected: until when it may come back before it counts as dead.
  std::optional<TimePoint> return_by;
  std::map<LeaseKey, wire::Resources> leases;

  bool usable() const { return peer != 0 && info.state == wire::NodeState::kAlive && !suspected; }
};

struct ActorRecord {
  wire::ActorSpec spec;
  wire::ActorInfo info;
  std::uint64_t gang = 0;
  std::uint64_t lease_generation = 0;
  std::uint64_t queue_order = 0;
  bool started = false;
  bool stopping = false;
  bool restart_after_stop = false;
  std::vector<std::int64_t> restarts_unix_us;
  std::optional<TimePoint> restart_at;  // kRestarting and waiting for its back-off
  std::set<PeerId> watchers;

  bool dead() const { return info.state == wire::ActorState::kDead; }
  bool has_process() const {
    return info.state == wire::ActorState::kStarting || info.state == wire::ActorState::kAlive;
  }
};

struct ClientRecord {
  ClientId client_id;
  JobId job_id;
  std::string name;
  std::string kind;
  PeerId peer = 0;                     // 0: not connected
  std::optional<TimePoint> return_by;  // not connected: until when it keeps its actors
};

// A control connection and who is at its other end.
struct PeerRecord {
  ClientId client_id;  // one of the two is set once it said who it is
  NodeId node_id;
  std::set<ActorId> watched_actors;
  bool watches_nodes = false;
};

}  // namespace troupe::scheduler

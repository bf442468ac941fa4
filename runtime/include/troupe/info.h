#pragma once
// What a cluster says of its nodes, actors and groups: plain structs, to be read. They are the same
// that travel, which is what each one's last line is for.

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/detail/wire_fields.h"
#include "troupe/ids.h"
#include "troupe/status.h"

namespace troupe {

// Amounts of resources in fixed point, 1/10,000 of a unit, so that fractions are exact.
// Names: "CPU", "GPU", "memory" (bytes), and whatever the user adds.
inline constexpr std::int64_t kResourceUnit = 10'000;
using Resources = std::map<std::string, std::int64_t, std::less<>>;

// Where a node listens. `local_name` is its abstract Unix socket, for processes on the same node.
struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
  std::string local_name;
  TROUPE_WIRE(Endpoint, host, port, local_name);
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
  std::string to_string() const { return host + ":" + std::to_string(port); }
};

// One condition on a node's labels: the label's value is one of these; with no values, the label is
// there. Negated: the opposite, which also holds for a node without the label.
struct LabelTerm {
  std::string key;
  bool negated = false;
  std::vector<std::string> values;
  TROUPE_WIRE(LabelTerm, key, negated, values);
  friend auto operator<=>(const LabelTerm&, const LabelTerm&) = default;
};
// All of its terms hold; an empty one holds for every node.
using LabelSelector = std::vector<LabelTerm>;

// What becomes of an actor while its node cannot reach the head, because the head is stopped or
// crashed, its disk hangs, or the network between them is cut.
//
//   kKeep   It runs on, and whoever knows it already can call it. Once a head that lives has
//           declared the node lost, the actor is started elsewhere under a new generation, so for
//           a while there may be two processes. The older one is refused by its generation: by
//           callers that know the newer one, and by actors that the newer one has called. It ends
//           at the first such contact, and at the latest when its node reaches the head again.
//   kFence  Its node ends it about 3 s after the head was last heard, before the head may start it
//           elsewhere: never more than one process, anywhere. For what must not happen twice
//           outside of the cluster: who writes to a place where nobody looks at generations.
//
// Neither covers a node whose daemon is gone (its keeper ends every actor after the hold time), nor
// a node that has looked for its head for 10 minutes: that one ends itself and every actor.
enum class OnHeadLoss : std::uint8_t {
  kKeep = 0,
  kFence = 1,
};
constexpr OnHeadLoss last_value(OnHeadLoss) { return OnHeadLoss::kFence; }

enum class NodeState : std::uint8_t {
  kAlive = 0,
  kDead = 1,
  kDraining = 2,   // takes nothing new, and will leave
  kSuspected = 3,  // alive, silent for longer than usual: takes nothing new until it is heard
};
constexpr NodeState last_value(NodeState) { return NodeState::kSuspected; }
std::string_view node_state_name(NodeState state);

struct NodeInfo {
  NodeId node_id;
  std::string name;  // host name, made unique by the head
  Endpoint endpoint;
  NodeState state = NodeState::kAlive;
  Resources total;
  Resources available;
  std::map<std::string, std::string> labels;
  std::int64_t pid = 0;
  std::int64_t joined_unix_us = 0;
  TROUPE_WIRE(NodeInfo, node_id, name, endpoint, state, total, available, labels, pid,
              joined_unix_us);
  friend bool operator==(const NodeInfo&, const NodeInfo&) = default;
};

enum class ActorState : std::uint8_t {
  kPending = 0,     // waits for resources
  kStarting = 1,    // its process starts, its constructor runs
  kAlive = 2,       // answers calls
  kRestarting = 3,  // its process died, a new one will come
  kDead = 4,        // for good; `death` says why
};
constexpr ActorState last_value(ActorState) { return ActorState::kDead; }
std::string_view actor_state_name(ActorState state);

// What the head knows of an actor.
struct ActorInfo {
  ActorId actor_id;
  std::string type;
  std::string name;
  ActorState state = ActorState::kPending;
  std::uint64_t generation = 0;  // number of the current process, from 1; grows at each restart
  NodeId node_id;                // valid from kStarting on
  Endpoint endpoint;             // of its node
  std::int64_t pid = 0;
  std::int32_t restarts = 0;
  std::int32_t rank = -1;
  JobId job_id;
  Resources resources;
  Status death;                    // not ok when kDead, and the last cause when kRestarting
  std::string pending_why;         // when kPending: what it needs and who has what
  GroupId placement_group;         // empty: none
  std::int32_t bundle_index = -1;  // the bundle it runs in; -1: none yet
  std::uint32_t light_count = 0;   // of its spec
  std::string namespace_name;
  std::string owner_name;   // who that is, for people; also where it is detached
  ActorId owner_actor;      // where that is an actor
  bool detached = false;    // outlives its owner
  SupervisorId supervisor;  // empty: none
  // Where its last process was told to finish what was queued: what it did not get to. -1: unknown.
  std::int64_t calls_dropped = -1;
  NodeId saved_state_node;  // which keeps what it saved last; empty: it saved nothing so far
  // The last generation that began without what an earlier one had saved, which was lost with its
  // node; 0: none did.
  std::uint64_t state_lost_generation = 0;
  bool awaits_nodes = false;  // as of its spec
  TROUPE_WIRE(ActorInfo, actor_id, type, name, state, generation, node_id, endpoint, pid, restarts,
              rank, job_id, resources, death, pending_why, placement_group, bundle_index,
              light_count, namespace_name, owner_name, owner_actor, detached, supervisor,
              calls_dropped, saved_state_node, state_lost_generation, awaits_nodes);
  friend bool operator==(const ActorInfo&, const ActorInfo&) = default;
};
// How the bundles of a placement group lie on nodes. PACK and SPREAD are wishes: few nodes, or one
// bundle a node where that can be had. The strict ones hold, or the group waits.
enum class PlacementStrategy : std::uint8_t {
  kPack = 0,
  kSpread = 1,
  kStrictPack = 2,    // all on one node
  kStrictSpread = 3,  // each on a node of its own
};
constexpr PlacementStrategy last_value(PlacementStrategy) {
  return PlacementStrategy::kStrictSpread;
}
std::string_view placement_strategy_name(PlacementStrategy strategy);

enum class PlacementGroupState : std::uint8_t {
  kPending = 0,       // waits for room
  kPreparing = 1,     // places were found; their nodes are asked
  kCreated = 2,       // reserved: actors run in it
  kRescheduling = 3,  // lost a node, holds nothing any more and waits for room
  kRemoved = 4,       // for good
};
constexpr PlacementGroupState last_value(PlacementGroupState) {
  return PlacementGroupState::kRemoved;
}
std::string_view placement_group_state_name(PlacementGroupState state);

struct BundleInfo {
  Resources resources;
  Resources available;  // what no actor in it holds; empty unless the group is created
  LabelSelector label_selector;
  NodeId node_id;  // valid while preparing and created; else where it was last
  TROUPE_WIRE(BundleInfo, resources, available, label_selector, node_id);
  friend bool operator==(const BundleInfo&, const BundleInfo&) = default;
};

// What the head knows of a placement group.
struct PlacementGroupInfo {
  GroupId group_id;
  std::string name;
  PlacementStrategy strategy = PlacementStrategy::kPack;
  PlacementGroupState state = PlacementGroupState::kPending;
  std::uint64_t generation = 0;  // number of the attempt to reserve it, from 1
  std::vector<BundleInfo> bundles;
  JobId job_id;
  std::int32_t priority = 0;
  // When it waits: what it needs and who has what. When removed: why.
  std::string why;
  TROUPE_WIRE(PlacementGroupInfo, group_id, name, strategy, state, generation, bundles, job_id,
              priority, why);
  friend bool operator==(const PlacementGroupInfo&, const PlacementGroupInfo&) = default;
};

// Which members of a group are restarted when one fails.
enum class RestartStrategy : std::uint8_t {
  kOneForOne = 0,   // that one
  kAllForOne = 1,   // all of them
  kRestForOne = 2,  // that one and those that were added after it
};
constexpr RestartStrategy last_value(RestartStrategy) { return RestartStrategy::kRestForOne; }
std::string_view restart_strategy_name(RestartStrategy strategy);

enum class SupervisorState : std::uint8_t {
  kRunning = 0,
  kRestarting = 1,  // waits until the last process of those that it restarts is gone
  kEnded = 2,       // for good; `why` says why
};
constexpr SupervisorState last_value(SupervisorState) { return SupervisorState::kEnded; }
std::string_view supervisor_state_name(SupervisorState state);

// One of the two is set.
struct SupervisorMember {
  ActorId actor;
  SupervisorId supervisor;
  TROUPE_WIRE(SupervisorMember, actor, supervisor);
  friend bool operator==(const SupervisorMember&, const SupervisorMember&) = default;
};

// What the head knows of a supervisor.
struct SupervisorInfo {
  SupervisorId supervisor_id;
  std::string name;
  RestartStrategy strategy = RestartStrategy::kOneForOne;
  SupervisorState state = SupervisorState::kRunning;
  SupervisorId parent;
  std::vector<SupervisorMember> members;  // the living ones, in the order in which they were added
  std::int32_t restarts = 0;
  // The last failure. When kEnded: kAborted where it gave up, kCancelled where it was ended.
  Status why;
  JobId job_id;
  std::string owner_name;
  TROUPE_WIRE(SupervisorInfo, supervisor_id, name, strategy, state, parent, members, restarts, why,
              job_id, owner_name);
  friend bool operator==(const SupervisorInfo&, const SupervisorInfo&) = default;
};

}  // namespace troupe

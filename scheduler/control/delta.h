#pragma once
// The head's decisions as values: what the journal keeps. A record is one version byte (1), one
// kind byte, and the fields (fixed-size little-endian numbers, nested messages of runtime/wire).
//
// Each delta states what is true from now on, never what changes, so that applying one twice is
// applying it once.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/variant.h"
#include "runtime/wire/types.h"

namespace troupe::scheduler {

struct NodeKnown {
  wire::NodeInfo node;
  friend bool operator==(const NodeKnown&, const NodeKnown&) = default;
};
struct NodeForgotten {
  NodeId node_id;
  friend bool operator==(const NodeForgotten&, const NodeForgotten&) = default;
};
struct ActorCreated {
  wire::ActorSpec spec;
  std::uint64_t gang = 0;  // actors with the same number, not 0, are placed together at first
  friend bool operator==(const ActorCreated&, const ActorCreated&) = default;
};
struct ActorChanged {
  wire::ActorInfo info;
  std::uint64_t lease_generation = 0;  // 0: holds no lease; else it holds one on info.node_id
  std::uint64_t queue_order = 0;       // 0: does not wait for a place
  bool started = false;                // its node reported the process of this generation
  bool stopping = false;               // its node was told to stop it
  bool restart_after_stop = false;
  std::vector<std::int64_t> restarts_unix_us;  // those that may still count against the budget
  bool moving = false;      // its node is drained: its next process is no restart of the budget
  SupervisorId barrier;     // the supervisor that restarts it with others; empty: none does
  bool state_lost = false;  // what it had saved is lost, and it has saved nothing since
  friend bool operator==(const ActorChanged&, const ActorChanged&) = default;
};
struct ActorForgotten {
  ActorId actor_id;
  friend bool operator==(const ActorForgotten&, const ActorForgotten&) = default;
};
struct EventLogged {
  wire::EventRecord event;
  friend bool operator==(const EventLogged&, const EventLogged&) = default;
};

struct GroupCreated {
  wire::PlacementGroupSpec spec;
  friend bool operator==(const GroupCreated&, const GroupCreated&) = default;
};
struct GroupChanged {
  wire::PlacementGroupInfo info;  // without what is available: that follows from the actors
  std::uint64_t queue_order = 0;  // its place in line, kept when it was reserved
  bool was_created = false;       // it was whole once
  friend bool operator==(const GroupChanged&, const GroupChanged&) = default;
};
struct GroupForgotten {
  GroupId group_id;
  friend bool operator==(const GroupForgotten&, const GroupForgotten&) = default;
};

struct JobKnown {
  wire::JobInfo job;
  friend bool operator==(const JobKnown&, const JobKnown&) = default;
};
struct JobForgotten {
  JobId job_id;
  friend bool operator==(const JobForgotten&, const JobForgotten&) = default;
};

struct SupervisorCreated {
  wire::SupervisorSpec spec;
  friend bool operator==(const SupervisorCreated&, const SupervisorCreated&) = default;
};
struct SupervisorChanged {
  wire::SupervisorInfo info;                   // without its members: they name it
  std::vector<std::int64_t> restarts_unix_us;  // those that may still count against the budget
  friend bool operator==(const SupervisorChanged&, const SupervisorChanged&) = default;
};
struct SupervisorForgotten {
  SupervisorId supervisor_id;
  friend bool operator==(const SupervisorForgotten&, const SupervisorForgotten&) = default;
};

// Their order is part of the journal's format: a new one goes to the end.
struct Deltas
    : Alternatives<NodeKnown, NodeForgotten, ActorCreated, ActorChanged, ActorForgotten,
                   EventLogged, GroupCreated, GroupChanged, GroupForgotten, JobKnown, JobForgotten,
                   SupervisorCreated, SupervisorChanged, SupervisorForgotten> {};
using Delta = Variant<Deltas>;

std::vector<std::byte> encode_delta(const Delta& delta);
// kDataLoss for bytes that are no record; kUnsupported for a version or kind of a later release.
Result<Delta> decode_delta(std::span<const std::byte> bytes);

}  // namespace troupe::scheduler

namespace troupe {
extern template class Variant<scheduler::Deltas>;
}  // namespace troupe

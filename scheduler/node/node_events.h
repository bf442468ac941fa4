#pragma once
// What a node's state machine takes in, and what it asks to be done.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/variant.h"
#include "runtime/wire/control_messages.h"
#include "runtime/wire/host_messages.h"
#include "runtime/wire/keeper_messages.h"
#include "scheduler/node/nvml.h"

namespace troupe::scheduler {

// One process of an actor; never used twice, never 0.
using HostId = std::uint64_t;
// A descriptor that the driver of the state holds; it stays open until CloseFd.
using FdHandle = std::uint64_t;
inline constexpr FdHandle kNoFd = 0;

namespace node_event {

// What a daemon before this one put down with the node's keeper. First of all events, or never.
// Actors whose process is not with the keeper are followed by SpawnFailed.
struct Adopt {
  struct Actor {
    wire::KeptActor kept;
    wire::ActorSpec spec;
    std::int64_t pid = 0;  // 0: it has no process, or that was not started any more
    bool ended = false;    // LeaderEnded will follow
    FdHandle saved_state = kNoFd;
    std::string state_lost_with = {};  // of its start
  };
  struct Segment {
    wire::KeptSegment kept;
    FdHandle fd = kNoFd;
  };
  wire::KeptNode node;
  std::vector<Actor> actors;
  std::vector<Segment> segments;
  std::optional<wire::KeptGpus> gpus;
};
// The node's keeper has ended, and with it every process and what it held.
struct KeeperLost {};

// The control connection is there; nothing has been said on it.
struct HeadUp {};
// It ended, or could not be made.
struct HeadDown {
  Status why;
};
struct FromHead {
  wire::ControlMessage message;
};
struct Spawned {
  HostId host = 0;
  std::int64_t pid = 0;
};
struct SpawnFailed {
  HostId host = 0;
  Status why;
};
// `fd` is the state's from here on.
struct FromHost {
  HostId host = 0;
  wire::HostMessage message;
  FdHandle fd = kNoFd;
};
// Of what it was told, `bytes` wait at the node, since its socket takes no more; 0: no more of it.
// `has_read`: it has taken some, else this is what was just added.
struct Unread {
  HostId host = 0;
  std::size_t bytes = 0;
  bool has_read = false;
};
// Its socket has ended, carried what is no message, or takes no more of what it must be told.
struct ChannelEnded {
  HostId host = 0;
  Status why;
};
// The process that was spawned has ended; others of its group may run. GroupGone follows when none
// does, whether they were killed or not.
struct LeaderEnded {
  HostId host = 0;
  wire::ExitStatus exit;
};
// Nothing of its group runs; all that it said has been delivered.
struct GroupGone {
  HostId host = 0;
};
// An authenticated connection for an actor. `fd` is the state's from here on.
struct ConnectionArrived {
  ActorId actor_id;
  FdHandle fd = kNoFd;
  wire::HostConnection connection;
};
// The node is to end by itself, its actors first.
struct ShutDown {
  std::string reason;
  bool drain = false;  // its actors may finish what is queued, within their time
  Duration grace{0};   // that is so long; zero: NodeConfig::shutdown_grace
};
// What is on the GPUs: the answer to ReadGpus with its number; 0: nobody asked.
struct GpusRead {
  std::uint64_t number = 0;
  std::vector<GpuReading> readings;
};
// The driver reported an error of a GPU.
struct GpuFailed {
  GpuFault fault;
};
// Answers FetchState. Ok: `fd`, the state's from here on, is what the actor had saved. kNotFound:
// the other node keeps nothing of it. Otherwise it could not be reached in time.
struct StateFetched {
  HostId host = 0;
  Status status;
  FdHandle fd = kNoFd;
};
// Another node has read a piece of what an actor saved here. Said of a node that ends.
struct StateRead {};
// All packages that are here, by hash, after each change.
struct PackagesHere {
  std::vector<std::string> sha256s;
};
// Answers FetchPackage, where that brought nothing.
struct PackageNotFetched {
  wire::Package package;
  Status why;
};
// Somebody here asks which nodes there are. TellNodes follows when the head has said it; not where
// there is no head.
struct NodesAsked {};
// Time has come to next_deadline().
struct Tick {};

}  // namespace node_event

struct NodeEvents
    : Alternatives<node_event::Adopt, node_event::KeeperLost, node_event::HeadUp,
                   node_event::HeadDown, node_event::FromHead, node_event::Spawned,
                   node_event::SpawnFailed, node_event::FromHost, node_event::Unread,
                   node_event::ChannelEnded, node_event::LeaderEnded, node_event::GroupGone,
                   node_event::ConnectionArrived, node_event::ShutDown, node_event::GpusRead,
                   node_event::GpuFailed, node_event::StateFetched, node_event::StateRead,
                   node_event::PackagesHere, node_event::PackageNotFetched, node_event::NodesAsked,
                   node_event::Tick> {};
using NodeEvent = Variant<NodeEvents>;

namespace node_command {

// Answered by HeadUp or HeadDown.
struct ConnectHead {};
// Closes the connection, or gives up making it; no HeadDown follows.
struct DropHead {};
struct SendHead {
  wire::ControlMessage message;
};
// ActorExited, with the last lines of the process's output put in.
struct ReportExit {
  wire::ActorExited exited;
  HostId log = 0;
};
// Answered by Spawned or SpawnFailed.
struct SpawnHost {
  HostId host = 0;
  wire::ActorSpec spec;
  std::uint64_t generation = 0;
  HostId log = 0;  // the actor's process before, whose output this one's continues; 0: none
};
// Where the message is a HostStart: the driver adds the endpoints and the token. A job's program
// has no ears: the driver makes SIGTERM to its process group of a HostStop.
struct TellHost {
  HostId host = 0;
  wire::HostMessage message;
  FdHandle fd = kNoFd;
};
// SIGKILL to the process group until it is empty; answered by LeaderEnded and GroupGone.
struct KillGroup {
  HostId host = 0;
};
struct CloseFd {
  FdHandle fd = kNoFd;
};
// Its output is not asked for any more.
struct ForgetHost {
  HostId host = 0;
};
struct Registered {
  std::string name;
};
// To put down for the daemon after this one: a record, with a descriptor where it has one, and with
// an actor's start where that is new.
struct Keep {
  std::string key;
  wire::KeeperMessage record;
  FdHandle fd = kNoFd;
  std::optional<wire::StartActor> start;
};
struct Unkeep {
  std::string key;
};
// What the actor saved on another node, for the process with this number that is to be started.
// Answered by StateFetched.
struct FetchState {
  HostId host = 0;
  ActorId actor_id;
  wire::Endpoint from;
};
// From one of these nodes. Answered by PackagesHere or PackageNotFetched.
struct FetchPackage {
  wire::Package package;
  std::vector<wire::Endpoint> from;
};
// The answer to NodesAsked.
struct TellNodes {
  std::vector<wire::NodeInfo> nodes;
};
// Those that are not to make room for others, by hash.
struct NeedPackages {
  std::set<std::string> sha256s;
};
// Answered by GpusRead.
struct ReadGpus {
  std::uint64_t number = 0;
};
// A line for the daemon's log.
struct Warn {
  std::string text;
};
// Nothing runs any more: the node ends; ok where it was asked to, with the reason.
struct EndNode {
  Status status;
  std::string reason;
};

}  // namespace node_command

struct NodeCommands
    : Alternatives<node_command::ConnectHead, node_command::DropHead, node_command::SendHead,
                   node_command::ReportExit, node_command::SpawnHost, node_command::TellHost,
                   node_command::KillGroup, node_command::CloseFd, node_command::ForgetHost,
                   node_command::Registered, node_command::Keep, node_command::Unkeep,
                   node_command::FetchState, node_command::FetchPackage, node_command::TellNodes,
                   node_command::NeedPackages, node_command::ReadGpus, node_command::Warn,
                   node_command::EndNode> {};
using NodeCommand = Variant<NodeCommands>;

}  // namespace troupe::scheduler

namespace troupe {
extern template class Variant<scheduler::NodeEvents>;
extern template class Variant<scheduler::NodeCommands>;
}  // namespace troupe

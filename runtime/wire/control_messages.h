#pragma once
// What is said on a control connection (target "head"): nodes and clients to the head and back.
//
// A request carries `request_id`; its reply carries the same. What has no request_id is a
// notification. Both sides send any message at any time; order per connection is kept.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/variant.h"
#include "runtime/wire/gpu.h"
#include "runtime/wire/types.h"
#include "runtime/wire/work.h"

namespace troupe::wire {

// --- who is there: the first message on every control connection ---------------------------------

// A driver, an actor's process or a tool.
struct ClientHello {
  std::uint64_t request_id = 0;
  ClientId client_id;
  JobId job_id;      // empty for tools
  std::string name;  // "driver 4711", "troupe status", …
  std::string kind;  // "driver", "actor", "tool"
  // A client that comes back within its grace period keeps its actors.
  bool reconnect = false;
  std::uint32_t protocol_version = kProtocolVersion;  // 0: of before clients said theirs
  // Where the names that it gives and asks for are; empty: in one that is its job's own.
  std::string namespace_name;
  TROUPE_WIRE(ClientHello, request_id, client_id, job_id, name, kind, reconnect, protocol_version,
              namespace_name);
};
// The namespace of a client that named none.
inline std::string namespace_of_job(JobId job_id) {
  return job_id.empty() ? std::string() : "job-" + job_id.to_string();
}

struct RunningActor {
  ActorSpec spec;
  std::uint64_t generation = 0;
  std::int64_t pid = 0;
  bool ready = false;
  TROUPE_WIRE(RunningActor, spec, generation, pid, ready);
};

// Its process is gone (its whole process group); or it could not be started at all.
struct ActorExited {
  ActorId actor_id;
  std::uint64_t generation = 0;
  ExitStatus exit;
  bool constructor_failed = false;
  Status cause;  // the constructor's or the start's error; ok where the process just ended
  std::string log_tail;
  // Where it was told to finish what was queued: the calls that it did not get to. -1: unknown.
  std::int64_t calls_dropped = -1;
  TROUPE_WIRE(ActorExited, actor_id, generation, exit, constructor_failed, cause, log_tail,
              calls_dropped);
};
template <>
inline constexpr std::int64_t kWireDefault<&ActorExited::calls_dropped> = -1;

// A node joins, or comes back after the connection or the head was lost: then it says what runs.
struct RegisterNode {
  std::uint64_t request_id = 0;
  std::uint32_t protocol_version = kProtocolVersion;
  NodeInfo node;
  std::vector<RunningActor> running;
  // What ended while the node was not registered.
  std::vector<ActorExited> exited;
  TROUPE_WIRE(RegisterNode, request_id, protocol_version, node, running, exited);
};

struct RegisterNodeReply {
  std::uint64_t request_id = 0;
  Status status;
  std::string name;  // the node's name, made unique
  std::int64_t heartbeat_interval_ms = 0;
  std::int64_t heartbeat_timeout_ms = 0;
  // (actor, generation) that the head does not want to run any more: the node stops them.
  std::vector<std::pair<ActorId, std::uint64_t>> stop;
  // All that the node holds for placement groups from now on, committed; what it held before is
  // over.
  std::vector<Reservation> reservations;
  TROUPE_WIRE(RegisterNodeReply, request_id, status, name, heartbeat_interval_ms,
              heartbeat_timeout_ms, stop, reservations);
};

// What a node's machine spends, as its daemon measured it last.
struct NodeUsage {
  std::uint64_t cpu_busy_us = 0;  // of all its CPUs together, since it was booted
  std::uint64_t memory_used_bytes = 0;
  std::uint64_t memory_total_bytes = 0;
  std::uint32_t processes = 0;  // actors' processes
  TROUPE_WIRE(NodeUsage, cpu_busy_us, memory_used_bytes, memory_total_bytes, processes);
  friend bool operator==(const NodeUsage&, const NodeUsage&) = default;
};

struct Heartbeat {
  NodeId node_id;
  std::uint64_t sequence = 0;
  std::optional<NodeUsage> usage;  // now and then; for whoever reads the head's metrics
  TROUPE_WIRE(Heartbeat, node_id, sequence, usage);
};

// --- head → node ---------------------------------------------------------------------------------

struct StartActor {
  ActorSpec spec;
  std::uint64_t generation = 0;
  // The node that keeps what the actor saved last, and its port; empty: nothing was saved. Where it
  // is another one than that which is told to start it, that one fetches the state first.
  NodeId saved_state_node;
  Endpoint saved_state_endpoint;
  // The name of the node with which the saved state was lost; empty: none was.
  std::string state_lost_with;
  TROUPE_WIRE(StartActor, spec, generation, saved_state_node, saved_state_endpoint,
              state_lost_with);
};

struct StopActor {
  ActorId actor_id;
  std::uint64_t generation = 0;
  // The actor may finish what it does for so long; then SIGKILL. 0: at once.
  std::int64_t grace_ms = 0;
  std::string reason;
  // Another process of it will be started: what the node keeps of it stays.
  bool comes_back = false;
  // It takes no new calls, and `grace_ms` is for those that are queued, too.
  bool drain = false;
  TROUPE_WIRE(StopActor, actor_id, generation, grace_ms, reason, comes_back, drain);
};

// The two phases in which a placement group is reserved: every node that is to hold a part of it is
// asked to prepare, and answers; when all have agreed, each is told to commit, otherwise to
// release.
struct PrepareBundles {
  Reservation reservation;
  TROUPE_WIRE(PrepareBundles, reservation);
};
// Its actors may start now.
struct CommitBundles {
  GroupId group_id;
  std::uint64_t generation = 0;
  TROUPE_WIRE(CommitBundles, group_id, generation);
};
// The group was removed, or is reserved anew. What runs in it is stopped by messages of its own.
struct ReleaseBundles {
  GroupId group_id;
  std::uint64_t generation = 0;
  TROUPE_WIRE(ReleaseBundles, group_id, generation);
};

// The node stops its actors and ends.
struct ShutdownNode {
  std::string reason;
  bool drain = false;  // those that may be started again finish what is queued, and go elsewhere
  std::int64_t grace_ms = 0;  // how long they may take; 0: as the node was started with
  TROUPE_WIRE(ShutdownNode, reason, drain, grace_ms);
};

// --- node → head ---------------------------------------------------------------------------------

struct ActorStarted {
  ActorId actor_id;
  std::uint64_t generation = 0;
  std::int64_t pid = 0;
  TROUPE_WIRE(ActorStarted, actor_id, generation, pid);
};
// Its constructor ran: it answers calls.
struct ActorReady {
  ActorId actor_id;
  std::uint64_t generation = 0;
  bool state_lost = false;  // as of HostReady
  TROUPE_WIRE(ActorReady, actor_id, generation, state_lost);
};
// The node keeps a state that the actor saved: the first of this process.
struct ActorSaved {
  ActorId actor_id;
  std::uint64_t generation = 0;
  TROUPE_WIRE(ActorSaved, actor_id, generation);
};
// The node holds the reservation, or why it cannot.
struct BundlesPrepared {
  GroupId group_id;
  std::uint64_t generation = 0;
  Status status;
  TROUPE_WIRE(BundlesPrepared, group_id, generation, status);
};
// Something happened on the node that people should find among the cluster's events.
struct NodeNote {
  std::string kind;  // "keeper_lost", "daemon_restarted"
  std::string text;  // one sentence
  TROUPE_WIRE(NodeNote, kind, text);
};

// --- client → head -------------------------------------------------------------------------------

// All of them are placed, or none is (gang): while they do not fit they wait as kPending, unless
// the cluster could never hold them: then kResourceExhausted with what is missing.
struct CreateActors {
  std::uint64_t request_id = 0;
  std::vector<ActorSpec> specs;  // actor_id chosen by the client
  bool gang = false;
  // Refuse at once instead of waiting when they do not fit now.
  bool no_wait = false;
  // One named actor: where one of this name lives already, that is it. The Reply says which it is.
  // kInvalidArgument where that is of another type, or was made with other arguments.
  bool get_if_exists = false;
  TROUPE_WIRE(CreateActors, request_id, specs, gang, no_wait, get_if_exists);
};
struct KillActor {
  std::uint64_t request_id = 0;
  ActorId actor_id;
  bool allow_restart = false;
  std::int64_t grace_ms = 0;
  std::string reason;
  bool drain = false;  // as of StopActor
  TROUPE_WIRE(KillActor, request_id, actor_id, allow_restart, grace_ms, reason, drain);
};
// Pushes an ActorUpdate now and at each change, until the connection ends or `stop`.
struct WatchActor {
  std::uint64_t request_id = 0;
  ActorId actor_id;  // empty: by name
  std::string name;
  bool stop = false;
  std::string namespace_name;  // of the name; empty: the client's own
  TROUPE_WIRE(WatchActor, request_id, actor_id, name, stop, namespace_name);
};
struct WatchNodes {
  std::uint64_t request_id = 0;  // pushes a NodeUpdate per node now and at each change
  // Not when only what is free of a node has changed.
  bool without_amounts = false;
  TROUPE_WIRE(WatchNodes, request_id, without_amounts);
};
struct ListNodes {
  std::uint64_t request_id = 0;
  TROUPE_WIRE(ListNodes, request_id);
};
// Answered in pieces, as the lists of groups and supervisors: by those that follow `after` in the
// order of their ids, and whether there are more.
struct ListActors {
  std::uint64_t request_id = 0;
  bool include_dead = true;
  ActorId after;
  TROUPE_WIRE(ListActors, request_id, include_dead, after);
};
struct ListEvents {
  std::uint64_t request_id = 0;
  std::uint64_t after_sequence = 0;
  std::uint32_t count_max = 1000;
  TROUPE_WIRE(ListEvents, request_id, after_sequence, count_max);
};
// Reserves a placement group; it waits while it does not fit. The group's id is the client's
// choice.
struct CreatePlacementGroup {
  std::uint64_t request_id = 0;
  PlacementGroupSpec spec;
  TROUPE_WIRE(CreatePlacementGroup, request_id, spec);
};
// Ends the actors in it and gives back what it holds. A group that was removed stays so.
struct RemovePlacementGroup {
  std::uint64_t request_id = 0;
  GroupId group_id;
  std::string reason;
  TROUPE_WIRE(RemovePlacementGroup, request_id, group_id, reason);
};
// Pushes a PlacementGroupUpdate now and at each change, until the connection ends or `stop`.
struct WatchPlacementGroup {
  std::uint64_t request_id = 0;
  GroupId group_id;  // empty: by name
  std::string name;
  bool stop = false;
  TROUPE_WIRE(WatchPlacementGroup, request_id, group_id, name, stop);
};
struct ListPlacementGroups {
  std::uint64_t request_id = 0;
  bool include_removed = true;
  GroupId after;
  TROUPE_WIRE(ListPlacementGroups, request_id, include_removed, after);
};
// Runs a program on the cluster as a job of its own. Accepted, refused, or kResourceExhausted where
// the cluster could never hold it; while it does not fit it waits.
struct SubmitJob {
  std::uint64_t request_id = 0;
  std::string name;  // for people; not unique
  // Its program, with what it needs; actor_id and job_id are the client's choice.
  ActorSpec driver;
  TROUPE_WIRE(SubmitJob, request_id, name, driver);
};
// SIGTERM to its program's process group, SIGKILL after `grace_ms`; then the job ends. A job that
// has ended stays so.
struct StopJob {
  std::uint64_t request_id = 0;
  JobId job_id;
  std::int64_t grace_ms = 0;
  std::string reason;
  TROUPE_WIRE(StopJob, request_id, job_id, grace_ms, reason);
};
struct ListJobs {
  std::uint64_t request_id = 0;
  bool include_ended = true;
  TROUPE_WIRE(ListJobs, request_id, include_ended);
};
// A group of actors that is restarted together (SupervisorSpec); its id is the client's choice.
struct CreateSupervisor {
  std::uint64_t request_id = 0;
  SupervisorSpec spec;
  TROUPE_WIRE(CreateSupervisor, request_id, spec);
};
// Ends the group and all of its members. One that has ended stays so.
struct EndSupervisor {
  std::uint64_t request_id = 0;
  SupervisorId supervisor_id;
  std::string reason;
  TROUPE_WIRE(EndSupervisor, request_id, supervisor_id, reason);
};
// Pushes a SupervisorUpdate now and at each change, until the connection ends or `stop`.
struct WatchSupervisor {
  std::uint64_t request_id = 0;
  SupervisorId supervisor_id;
  bool stop = false;
  TROUPE_WIRE(WatchSupervisor, request_id, supervisor_id, stop);
};
struct ListSupervisors {
  std::uint64_t request_id = 0;
  bool include_ended = true;
  SupervisorId after;
  TROUPE_WIRE(ListSupervisors, request_id, include_ended, after);
};
// The node takes nothing new. Actors on it that may be started again finish what is queued, within
// `grace_ms`, and are started elsewhere; the others run on.
struct DrainNode {
  std::uint64_t request_id = 0;
  NodeId node_id;
  std::int64_t grace_ms = 0;
  std::string reason;
  bool node_ends = false;  // then, as if its own process had been told to leave
  TROUPE_WIRE(DrainNode, request_id, node_id, grace_ms, reason, node_ends);
};
// Ends every non-detached actor of a job, and removes its groups. Where the job was submitted, and
// a driver inside it asks: those of that driver, for the job may go on.
struct EndJob {
  std::uint64_t request_id = 0;
  JobId job_id;
  std::string reason;
  TROUPE_WIRE(EndJob, request_id, job_id, reason);
};
// Ends the whole cluster: all actors, all nodes, then the head.
struct StopCluster {
  std::uint64_t request_id = 0;
  std::string reason;
  TROUPE_WIRE(StopCluster, request_id, reason);
};
// Output lines that a node keeps of an actor (actor_id set) or its daemon's own (empty). Sent to
// the node's own port (target "node"), never through the head.
struct ReadLogs {
  std::uint64_t request_id = 0;
  ActorId actor_id;
  std::uint64_t bytes_max = 64 << 10;
  TROUPE_WIRE(ReadLogs, request_id, actor_id, bytes_max);
};

// A piece of a segment that a node keeps for a job, whoever owns it and whether the owner runs, is
// stopped or is dead. Sent to the node's own port, as ReadLogs. At most
// limits::kSegmentReadBytesMax at once.
struct ReadSegment {
  std::uint64_t request_id = 0;
  JobId job_id;
  std::string name;
  std::uint64_t offset = 0;
  std::uint64_t bytes_max = 64 << 10;
  TROUPE_WIRE(ReadSegment, request_id, job_id, name, offset, bytes_max);
};

// A piece of the state that an actor saved last on this node. Sent to the node's own port, as
// ReadLogs, by the node where the actor is started next; answered by SegmentBytes.
struct ReadSavedState {
  std::uint64_t request_id = 0;
  ActorId actor_id;
  std::uint64_t offset = 0;
  std::uint64_t bytes_max = 64 << 10;
  TROUPE_WIRE(ReadSavedState, request_id, actor_id, offset, bytes_max);
};

// The GPUs of a node: what they are, what is on them and who holds them. Sent to the node's own
// port, as ReadLogs; answered by GpuList.
struct ReadGpus {
  std::uint64_t request_id = 0;
  TROUPE_WIRE(ReadGpus, request_id);
};

// Pushes an OutputLine for each line of output, those that the node still has first: of the actors
// of a job, or of one actor. Sent to the node's own port, as ReadLogs; until the connection ends.
// The Reply says that every line written before has been sent; a second request on the connection
// asks for that alone.
struct FollowOutput {
  std::uint64_t request_id = 0;
  JobId job_id;      // empty: `actor_id` says whose
  ActorId actor_id;  // empty: all of the job's
  TROUPE_WIRE(FollowOutput, request_id, job_id, actor_id);
};

// --- packages (scheduler/packages) ---------------------------------------------------------------

// Asked by nodes and tools: which nodes have the package. The head only knows who has what; the
// bytes go from node to node.
struct FindPackage {
  std::uint64_t request_id = 0;
  Package package;
  TROUPE_WIRE(FindPackage, request_id, package);
};
// Its answer: some of those that are there and have it, as many as anybody asks in turn.
struct PackageSources {
  std::uint64_t request_id = 0;
  Package package;
  std::vector<Endpoint> nodes;
  TROUPE_WIRE(PackageSources, request_id, package, nodes);
};
// Node → head: the hashes of all packages that it has, at each change and behind a registration.
struct NodePackages {
  std::vector<std::string> sha256s;
  TROUPE_WIRE(NodePackages, sha256s);
};
// A piece of a package's file, at most limits::kPackagePieceBytes. Sent to the node's own port
// (target "packages"); answered by SegmentBytes, with kNotFound where the node does not have it.
struct ReadPackage {
  std::uint64_t request_id = 0;
  Package package;
  std::uint64_t offset = 0;
  std::uint64_t bytes_max = 0;
  TROUPE_WIRE(ReadPackage, request_id, package, offset, bytes_max);
};
// The next piece of a package's file, to the same port, from the first byte to the last on one
// connection, behind one without bytes, which asks whether it is wanted. Each is answered by a
// Reply: that of the last one comes when the node has the package and has found its hash right;
// kAlreadyExists: it has it, and wants no more of it.
struct WritePackage {
  std::uint64_t request_id = 0;
  Package package;
  std::uint64_t offset = 0;
  Bytes bytes;
  TROUPE_WIRE(WritePackage, request_id, package, offset, bytes);
};

// What the client's process has under way beside actors; it replaces what was said before. At most
// once a second, where it has changed, and on each new connection.
struct ReportWork {
  std::uint64_t request_id = 0;
  Work work;
  TROUPE_WIRE(ReportWork, request_id, work);
};
// The process of an actor only waits, and others may have its CPUs; or it goes on (`back`), and has
// those again that are free, and the rest when they come free. Only where ActorSpec::lends_cpus
// says so.
struct LendCpus {
  std::uint64_t request_id = 0;
  ActorId actor_id;
  std::uint64_t generation = 0;
  bool back = false;
  TROUPE_WIRE(LendCpus, request_id, actor_id, generation, back);
};
// Answered by WorkList: in pieces, as ListActors.
struct ListWork {
  std::uint64_t request_id = 0;
  ClientId after;
  TROUPE_WIRE(ListWork, request_id, after);
};

// --- head → client -------------------------------------------------------------------------------

// The answer to every request that returns nothing but success or failure.
struct Reply {
  std::uint64_t request_id = 0;
  Status status;
  ActorId actor_id;  // to CreateActors::get_if_exists: the actor that has the name
  TROUPE_WIRE(Reply, request_id, status, actor_id);
};
struct ActorUpdate {
  ActorInfo actor;
  TROUPE_WIRE(ActorUpdate, actor);
};
struct NodeUpdate {
  NodeInfo node;
  TROUPE_WIRE(NodeUpdate, node);
};
struct NodeList {
  std::uint64_t request_id = 0;
  std::vector<NodeInfo> nodes;
  TROUPE_WIRE(NodeList, request_id, nodes);
};
struct ActorList {
  std::uint64_t request_id = 0;
  std::vector<ActorInfo> actors;
  bool more = false;
  TROUPE_WIRE(ActorList, request_id, actors, more);
};
struct EventList {
  std::uint64_t request_id = 0;
  std::vector<EventRecord> events;
  TROUPE_WIRE(EventList, request_id, events);
};
struct PlacementGroupUpdate {
  PlacementGroupInfo group;
  TROUPE_WIRE(PlacementGroupUpdate, group);
};
struct PlacementGroupList {
  std::uint64_t request_id = 0;
  std::vector<PlacementGroupInfo> groups;
  bool more = false;
  TROUPE_WIRE(PlacementGroupList, request_id, groups, more);
};
struct JobList {
  std::uint64_t request_id = 0;
  std::vector<JobInfo> jobs;
  TROUPE_WIRE(JobList, request_id, jobs);
};
struct SupervisorUpdate {
  SupervisorInfo supervisor;
  TROUPE_WIRE(SupervisorUpdate, supervisor);
};
struct SupervisorList {
  std::uint64_t request_id = 0;
  std::vector<SupervisorInfo> supervisors;
  bool more = false;
  TROUPE_WIRE(SupervisorList, request_id, supervisors, more);
};
struct ClientWork {
  ClientId client_id;
  JobId job_id;
  std::string name;  // of the driver or actor
  Work work;
  TROUPE_WIRE(ClientWork, client_id, job_id, name, work);
};
struct WorkList {
  std::uint64_t request_id = 0;
  std::vector<ClientWork> clients;
  bool more = false;
  TROUPE_WIRE(WorkList, request_id, clients, more);
};
struct LogText {
  std::uint64_t request_id = 0;
  Status status;
  std::string text;
  TROUPE_WIRE(LogText, request_id, status, text);
};

// The answer to ReadSegment: what the bytes are at the moment of reading, torn where the owner
// writes meanwhile. Fewer where the segment ends.
struct SegmentBytes {
  std::uint64_t request_id = 0;
  Status status;
  std::uint64_t size_bytes = 0;  // of the whole segment
  Bytes bytes;
  TROUPE_WIRE(SegmentBytes, request_id, status, size_bytes, bytes);
};

struct GpuList {
  std::uint64_t request_id = 0;
  std::vector<GpuStatus> gpus;
  TROUPE_WIRE(GpuList, request_id, gpus);
};

// A line that an actor's process wrote; or a part of one, which is not kept (kReturn, kOpen).
struct OutputLine {
  ActorId actor_id;
  std::string label;         // the actor's name; or its class with its rank or its id
  std::uint64_t number = 0;  // from 1, of the actor's lines on this node
  std::string text;
  // Not the actor's: the node's sentence about the lines up to `number` that it left out.
  bool notice = false;
  // It came by standard error; unknown, and false, of a line that was kept for who comes later.
  bool error_stream = false;
  LineEnd end = LineEnd::kNewline;
  // So many bytes at the beginning of `text` have come before, in parts of this line.
  std::uint32_t shown_bytes = 0;
  TROUPE_WIRE(OutputLine, actor_id, label, number, text, notice, error_stream, end, shown_bytes);

  bool is_part() const { return end == LineEnd::kReturn || end == LineEnd::kOpen; }
  // What follows what came before, with its end: as the program wrote it.
  std::string new_text() const;
};

// In the order of their numbers on the wire: a new one goes to the end.
struct ControlMessages
    : Alternatives<ClientHello, RegisterNode, RegisterNodeReply, Heartbeat, StartActor, StopActor,
                   ShutdownNode, ActorStarted, ActorReady, ActorExited, CreateActors, KillActor,
                   WatchActor, WatchNodes, ListNodes, ListActors, ListEvents, EndJob, StopCluster,
                   ReadLogs, Reply, ActorUpdate, NodeUpdate, NodeList, ActorList, EventList,
                   LogText, ReadSegment, SegmentBytes, NodeNote, PrepareBundles, CommitBundles,
                   ReleaseBundles, BundlesPrepared, CreatePlacementGroup, RemovePlacementGroup,
                   WatchPlacementGroup, ListPlacementGroups, PlacementGroupUpdate,
                   PlacementGroupList, FollowOutput, OutputLine, SubmitJob, StopJob, ListJobs,
                   JobList, CreateSupervisor, EndSupervisor, WatchSupervisor, ListSupervisors,
                   SupervisorUpdate, SupervisorList, DrainNode, ReadGpus, GpuList, ActorSaved,
                   ReadSavedState, FindPackage, PackageSources, NodePackages, ReadPackage,
                   WritePackage, ReportWork, ListWork, WorkList, LendCpus> {};
using ControlMessage = Variant<ControlMessages>;

// The message's bytes, ready to be a frame.
Bytes encode(const ControlMessage& message);
// A complete frame. kProtocol for anything that is not exactly one message within the limits.
Result<ControlMessage> decode_control(std::span<const std::byte> frame);

}  // namespace troupe::wire

namespace troupe {
extern template class Variant<wire::ControlMessages>;
}  // namespace troupe

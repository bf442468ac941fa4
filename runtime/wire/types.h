#pragma once
// The nouns that travel: what head, nodes, hosts, drivers and callers tell each other about.
//
// Plain values. The encoding (Cap'n Proto) is hidden in this folder's sources; nobody else sees it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "troupe/detail/wire_fields.h"
#include "troupe/info.h"

namespace troupe::wire {

// Protocol generation: nodes and clients of another one are refused by name.
inline constexpr std::uint32_t kProtocolVersion = 4;

using Bytes = std::vector<std::byte>;

// What users read of them (troupe/info.h).
using troupe::actor_state_name;
using troupe::ActorInfo;
using troupe::ActorState;
using troupe::BundleInfo;
using troupe::Endpoint;
using troupe::kResourceUnit;
using troupe::LabelSelector;
using troupe::LabelTerm;
using troupe::node_state_name;
using troupe::NodeInfo;
using troupe::NodeState;
using troupe::OnHeadLoss;
using troupe::placement_group_state_name;
using troupe::placement_strategy_name;
using troupe::PlacementGroupInfo;
using troupe::PlacementGroupState;
using troupe::PlacementStrategy;
using troupe::Resources;
using troupe::restart_strategy_name;
using troupe::RestartStrategy;
using troupe::supervisor_state_name;
using troupe::SupervisorInfo;
using troupe::SupervisorMember;
using troupe::SupervisorState;

template <>
inline constexpr std::int64_t kWireDefault<&ActorInfo::bundle_index> = -1;
template <>
inline constexpr std::int64_t kWireDefault<&ActorInfo::calls_dropped> = -1;

// How often an actor may be restarted, and how soon.
struct RestartPolicy {
  std::int32_t max_restarts = 0;         // within the window; -1 is without limit
  std::int64_t window_ms = 60'000;       // 0: for the actor's whole life
  std::int64_t backoff_initial_ms = 10;  // doubles at each restart within the window …
  std::int64_t backoff_max_ms = 2'000;   // … up to this
  TROUPE_WIRE(RestartPolicy, max_restarts, window_ms, backoff_initial_ms, backoff_max_ms);
  friend bool operator==(const RestartPolicy&, const RestartPolicy&) = default;
};

// How often an actor's process is asked whether it is well, and how long it may take to say so. One
// that does not, or says no, is killed; its restart policy applies.
struct HealthPolicy {
  std::int64_t interval_ms = 0;  // 0: nobody asks
  std::int64_t timeout_ms = 0;   // longer than its longest call
  TROUPE_WIRE(HealthPolicy, interval_ms, timeout_ms);
  friend bool operator==(const HealthPolicy&, const HealthPolicy&) = default;
};

// The program that an actor's process runs: the driver's own executable.
struct Image {
  std::string path;        // as the driver sees it
  std::uint64_t xxh3 = 0;  // of its bytes; a node starts only an image with this hash
  TROUPE_WIRE(Image, path, xxh3);
  friend bool operator==(const Image&, const Image&) = default;
};

// What a job brings along for nodes that lack it: its program, libraries and working folder, as one
// file (scheduler/packages).
struct Package {
  std::string sha256;            // of the file's bytes, 64 hexadecimal digits; empty: none
  std::uint64_t size_bytes = 0;  // of the file
  TROUPE_WIRE(Package, sha256, size_bytes);
  friend bool operator==(const Package&, const Package&) = default;
  bool empty() const { return sha256.empty(); }
  // "package 0a1b2c3d4e5f (3.0 MiB)"
  std::string to_string() const;
};
template <>
inline constexpr bool kNullWhenDefault<Package> = true;
// kInvalidArgument for a hash that is none, or a size of nothing. An empty one is well.
Status check(const Package& package);

// A job's arguments, environment and directory: half of what a node's daemon can say to its keeper
// at once (limits::kKeeperPacketBytesMax), since the node adds words of its own.
inline constexpr std::size_t kProgramBytesMax = 64u << 10;

// Any executable on the node, which speaks no protocol of ours: a job's driver, whose end is the
// job's, or a rank of somebody's run. It is ready when it was started.
struct Program {
  std::vector<std::string> argv;  // [0]: a path on the node, or a name to be found in its PATH
  // On the node, absolute; empty: the working folder of the spec's package.
  std::string working_directory;
  // Files on the node, absolute, which its lines are appended to besides; empty: none.
  std::string stdout_path;
  std::string stderr_path;
  TROUPE_WIRE(Program, argv, working_directory, stdout_path, stderr_path);
  friend bool operator==(const Program&, const Program&) = default;
};
template <>
inline constexpr bool kNullWhenDefault<Program> = true;

// How a piece of a program's output ends.
enum class LineEnd : std::uint8_t {
  kNewline,  // it is a whole line
  kNone,     // it stands for a line: the line was too long for one piece, or the program has ended
  kReturn,   // by a carriage return: what follows is written over it on a terminal
  kOpen,     // not yet: the program has written the beginning of a line, and waits
};
constexpr LineEnd last_value(LineEnd) { return LineEnd::kOpen; }

// Everything needed to create an actor, and to create it again.
struct ActorSpec {
  ActorId actor_id;
  std::string type;  // registered name of the actor class
  std::string name;  // unique among living actors of its namespace; empty: unnamed
  Bytes constructor_arguments;
  // Constructor arguments of so many bytes that are not in the spec: the process that created the
  // actor keeps them, and sends them to each process of the actor (actors/argument_sender.h). 0:
  // there are none. Their XXH3, to tell them from others.
  std::uint64_t arguments_beside_bytes = 0;
  std::uint64_t arguments_beside_hash = 0;
  Resources resources;
  RestartPolicy restart;
  std::optional<NodeId> node_affinity;  // hard: this node or nowhere
  JobId job_id;
  ClientId owner;         // the client whose end ends the actor
  bool detached = false;  // outlives its owner
  Image image;
  std::string run;         // shown in the process's command line: --run
  std::int32_t rank = -1;  // shown in the process's command line: --rank; -1: none
  std::map<std::string, std::string> environment;
  // Where the process's output is kept besides the node's own log folder; empty: nowhere else.
  std::string log_path;
  bool node_affinity_soft = false;  // node_affinity is tried first, then the others
  LabelSelector label_selector;     // hard: nodes with these labels or none
  LabelSelector label_preference;   // soft: such nodes first, then the others
  GroupId placement_group;          // runs in a bundle of this group; empty: in none
  // The bundle's index; -1: any with room. What a node is told to start has the one chosen.
  std::int32_t bundle_index = -1;
  std::int32_t priority = 0;  // while it waits: larger ones are tried first
  // How many light actors its process has room for (actors/light_actor.h); 0: it is an actor
  // itself.
  std::uint32_t light_count = 0;
  Program program;  // empty: an actor of `image`
  // Of the name. Empty: that of the client which creates it; the head puts that in.
  std::string namespace_name;
  // The actor whose end ends it, instead of `owner`; empty: `owner` it is. With a generation: it
  // ends already with that process of the owner.
  ActorId owner_actor;
  std::uint64_t owner_generation = 0;
  // Who restarts it, instead of `restart`; its place there comes from the head. Empty: nobody.
  SupervisorId supervisor;
  std::uint64_t supervisor_order = 0;
  HealthPolicy health;
  OnHeadLoss on_head_loss = OnHeadLoss::kKeep;
  // Whether an empty start is right where the saved state was lost with its node.
  bool start_empty_on_state_loss = false;
  // Not refused where no node that is there could hold it: it waits for one that does.
  bool awaits_nodes = false;
  // 1: what it saves has a copy on another node (actors/state_copy.h).
  std::uint32_t replicas = 0;
  // What its process needs, that not every node has. The head sets it: that of its job's program.
  Package package;
  // Its process says when it only waits, and others may have its CPUs meanwhile (LendCpus).
  bool lends_cpus = false;
  TROUPE_WIRE(ActorSpec, actor_id, type, name, constructor_arguments, resources, restart,
              node_affinity, job_id, owner, detached, image, run, rank, environment, log_path,
              node_affinity_soft, label_selector, label_preference, placement_group, bundle_index,
              priority, light_count, program, namespace_name, owner_actor, owner_generation,
              supervisor, supervisor_order, health, on_head_loss, start_empty_on_state_loss,
              arguments_beside_bytes, arguments_beside_hash, awaits_nodes, replicas, package,
              lends_cpus);
  friend bool operator==(const ActorSpec&, const ActorSpec&) = default;
  bool is_program() const { return !program.argv.empty(); }
};
template <>
inline constexpr std::int64_t kWireDefault<&ActorSpec::bundle_index> = -1;

// What a placement group reserves at one node as a unit.
struct BundleSpec {
  Resources resources;
  LabelSelector label_selector;
  TROUPE_WIRE(BundleSpec, resources, label_selector);
  friend bool operator==(const BundleSpec&, const BundleSpec&) = default;
};

// Everything needed to reserve a placement group, and to reserve it again.
struct PlacementGroupSpec {
  GroupId group_id;
  std::string name;  // unique among groups that were not removed; empty: unnamed
  PlacementStrategy strategy = PlacementStrategy::kPack;
  std::vector<BundleSpec> bundles;
  JobId job_id;
  ClientId owner;         // the client whose end removes it
  bool detached = false;  // outlives its owner
  std::int32_t priority = 0;
  TROUPE_WIRE(PlacementGroupSpec, group_id, name, strategy, bundles, job_id, owner, detached,
              priority);
  friend bool operator==(const PlacementGroupSpec&, const PlacementGroupSpec&) = default;
};

// What a node holds for a placement group: its bundles there, summed up. How they are divided among
// actors is the head's affair.
struct Reservation {
  GroupId group_id;
  std::uint64_t generation = 0;
  Resources resources;
  TROUPE_WIRE(Reservation, group_id, generation, resources);
  friend bool operator==(const Reservation&, const Reservation&) = default;
};

// A group of actors and of further groups that is restarted by one rule. Where members fail more
// often than `restart` allows, the group gives up: its parent restarts it whole as one of its own
// members, or it ends, and with it every member.
struct SupervisorSpec {
  SupervisorId supervisor_id;
  std::string name;  // for people; need not be unique
  RestartStrategy strategy = RestartStrategy::kOneForOne;
  RestartPolicy restart;      // of the group together
  std::int64_t grace_ms = 0;  // what members that are restarted with another may take to finish
  SupervisorId parent;        // empty: its owner is told when it gives up
  JobId job_id;
  ClientId owner;  // as of an actor
  ActorId owner_actor;
  std::uint64_t owner_generation = 0;
  bool detached = false;
  std::uint64_t order = 0;  // its place in the parent; from the head
  TROUPE_WIRE(SupervisorSpec, supervisor_id, name, strategy, restart, grace_ms, parent, job_id,
              owner, owner_actor, owner_generation, detached, order);
  friend bool operator==(const SupervisorSpec&, const SupervisorSpec&) = default;
};

// How a process ended.
struct ExitStatus {
  std::int32_t exit_code = 0;  // when signal is 0
  std::int32_t signal = 0;
  TROUPE_WIRE(ExitStatus, exit_code, signal);
  friend bool operator==(const ExitStatus&, const ExitStatus&) = default;
  // "exit code 3", "killed by signal 9 (SIGKILL)"
  std::string to_string() const;
};

enum class JobState : std::uint8_t {
  kPending = 0,    // its program waits for room, or is being started
  kRunning = 1,    // its program runs
  kSucceeded = 2,  // its program ended with exit code 0
  kFailed = 3,     // … with another one, by a signal, or could not be started
  kStopped = 4,    // it was stopped on request
};
constexpr JobState last_value(JobState) { return JobState::kStopped; }
std::string_view job_state_name(JobState state);

// What the head knows of a job. `troupe submit` makes them; a driver that connects by itself is a
// job without a program.
struct JobInfo {
  JobId job_id;
  std::string name;
  JobState state = JobState::kPending;
  ActorId driver;       // the entry among the actors that is its program; empty: it has none
  std::string command;  // the program and its arguments, for people
  std::int32_t priority = 0;
  std::int64_t submitted_unix_us = 0;  // 0, as the next two: it did not happen, or is not known
  std::int64_t started_unix_us = 0;
  std::int64_t ended_unix_us = 0;
  NodeId node_id;         // where its program runs, or ran
  bool stopping = false;  // it was asked to stop
  // How its program ended; nothing where it never ran, or nobody saw its end.
  std::optional<ExitStatus> exit;
  // While it, or something of it, waits for room: what for; when it ended: how.
  std::string why;
  std::uint32_t actors_alive = 0;  // besides its program
  TROUPE_WIRE(JobInfo, job_id, name, state, driver, command, priority, submitted_unix_us,
              started_unix_us, ended_unix_us, node_id, stopping, exit, why, actors_alive);
  friend bool operator==(const JobInfo&, const JobInfo&) = default;
  bool ended() const { return state != JobState::kPending && state != JobState::kRunning; }
};

// One line of `troupe events`.
struct EventRecord {
  std::uint64_t sequence = 0;
  std::int64_t unix_time_us = 0;
  std::string
      kind;  // "node_joined", "node_died", "actor_alive", "actor_died", "actor_restarting", …
  NodeId node_id;
  ActorId actor_id;
  std::uint64_t generation = 0;
  std::string text;  // one sentence
  TROUPE_WIRE(EventRecord, sequence, unix_time_us, kind, node_id, actor_id, generation, text);
  friend bool operator==(const EventRecord&, const EventRecord&) = default;
};

}  // namespace troupe::wire

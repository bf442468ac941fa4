#pragma once
// What a node decides: the lives of its actors' processes, who gets which descriptor, when the head
// counts as lost.
//
// Pure: equal events at equal times give equal commands. Processes, sockets and descriptors appear
// as numbers only; whoever drives the state owns the things behind them. Not thread-safe.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/timing.h"
#include "scheduler/node/gpu_devices.h"
#include "scheduler/node/node_events.h"

namespace troupe::scheduler {

struct NodeConfig : Timing {
  wire::NodeInfo node;                 // as it registers
  NodeGpus gpus;                       // the devices behind its amount of GPUs
  std::size_t hand_overs_max = 64;     // connections that wait for one actor
  std::size_t segments_max = 1024;     // per job
  std::size_t attaches_max = 64;       // of one process, waiting
  std::size_t ended_actors_max = 200;  // that will not come back, and whose output can be read
  // Why there is no folder for packages, so that nothing that needs one can run; empty: there is.
  std::string without_packages;
};

class NodeState {
 public:
  NodeState(NodeConfig config, TimePoint now);

  std::vector<NodeCommand> apply(NodeEvent event, TimePoint now);
  // When apply(Tick) is due. Nothing: no timer runs.
  std::optional<TimePoint> next_deadline() const;

  // Whether a connection for this actor would be taken.
  Status check_actor(ActorId actor_id) const;
  // The process whose output answers for the actor: the one that runs, or ran last.
  std::optional<HostId> log_of(ActorId actor_id) const;
  bool registered() const { return registered_; }
  bool has_joined() const { return joined_once_; }  // now or before
  // By which the cluster knows this node: the head makes names unique.
  const std::string& name() const { return name_; }
  // When the actors that must not run twice are to have ended, unless the head is heard before.
  // Nothing: there is no such actor here, or no lease.
  std::optional<TimePoint> lease_end() const;
  // The segment that is kept for the job under this name.
  std::optional<FdHandle> segment(JobId job_id, const std::string& name) const;
  // What is held for placement groups, committed or only prepared.
  std::vector<wire::Reservation> reservations() const;
  // What is kept of an actor that has no process here. kNotFound: nothing.
  Result<FdHandle> saved_state(ActorId actor_id) const;
  bool ending() const { return end_status_.has_value(); }
  // Its GPUs as it sees them.
  std::vector<wire::GpuStatus> gpus() const { return gpus_.status(); }
  // Processes that are not gone, and actors that wait for GPUs.
  std::size_t process_count() const { return by_host_.size(); }
  // What must always be true, as a sentence when it is not.
  std::optional<std::string> broken_invariant() const;

 private:
  // kQueued: it waits for GPUs, its saved state or its package, and has no process yet.
  enum class Phase : std::uint8_t { kNone, kQueued, kSpawning, kStarting, kReady, kEnded };
  struct Waiting {
    FdHandle fd = kNoFd;
    wire::HostConnection connection;
    TimePoint until;
  };
  struct Actor {
    wire::ActorSpec spec;
    std::uint64_t generation = 0;
    Phase phase = Phase::kNone;
    HostId host = 0;
    std::int64_t pid = 0;
    bool stopping = false;
    bool killed = false;
    bool ends_for_good = false;  // the head wants no other process of it
    bool record_lost = false;    // the keeper that held its start is gone
    std::optional<TimePoint> kill_at;
    wire::ExitStatus exit;
    Status cause;
    bool constructor_failed = false;
    std::optional<wire::StartActor> next;  // starts when the process before it is gone
    FdHandle saved_state = kNoFd;
    bool has_lost_state = false;  // its process began without, and found no copy
    bool fetching = false;        // its saved state, from another node
    std::string state_lost_with;  // of its start
    std::deque<Waiting> waiting;
    HostId log = 0;
    std::optional<TimePoint> keep_until;    // without a process: may come back so long
    std::int64_t calls_dropped = -1;        // wire::HostDrained
    std::optional<TimePoint> health_due;    // until when it is to have said that it is well
    std::optional<TimePoint> unread_since;  // since when nothing of what waits for it was read
    std::size_t unread_bytes = 0;
    std::vector<std::string> gpus;  // that it has, or had last, by name
    TimePoint gpus_by;              // while it waits for them

    bool has_process() const { return phase != Phase::kNone; }
    bool can_be_told() const {
      return (phase == Phase::kStarting || phase == Phase::kReady) && !killed;
    }
    // Whether it has a process, or waits for one, that ends with the node's lease.
    bool is_fenced() const {
      return spec.on_head_loss == wire::OnHeadLoss::kFence && (has_process() || next);
    }
    // Whether its process is on its way out, by itself or by us.
    bool ending() const { return killed || stopping || kill_at || phase == Phase::kEnded; }
  };
  using SegmentKey = std::pair<JobId, std::string>;
  struct KeptSegment {
    FdHandle fd = kNoFd;
    HostId owner = 0;  // may be gone
  };
  // A process waits for a segment whose owner is on its way out.
  struct Attach {
    HostId host = 0;
    std::uint64_t request_id = 0;
    SegmentKey key;
    TimePoint until;
  };
  using Actors = std::map<ActorId, Actor>;

  // node_state.cpp: the head
  void on(node_event::HeadUp& event);
  void on(node_event::HeadDown& event);
  void on(node_event::FromHead& event);
  void on(node_event::ShutDown& event);
  void on(node_event::Tick& event);
  void from_head(wire::RegisterNodeReply& reply);
  void from_head(wire::Heartbeat& echo);
  void from_head(wire::StartActor& start);
  void from_head(wire::StopActor& stop);
  void from_head(wire::ActorSaved& known);
  void from_head(wire::ShutdownNode& shutdown);
  void from_head(wire::PrepareBundles& prepare);
  void from_head(wire::CommitBundles& commit);
  void from_head(wire::ReleaseBundles& release);
  template <typename Message>
  void from_head(Message& message);
  void tick_head();
  void head_lost(const Status& why);
  void send(wire::ControlMessage message);
  std::optional<TimePoint> fence_at() const;
  void fence();
  void end_when_empty();
  void keep_node();
  wire::NodeInfo info() const;

  // node_keeping.cpp: what outlives the daemon
  void on(node_event::Adopt& event);
  void on(node_event::KeeperLost& event);
  void adopt(node_event::Adopt::Actor& kept);
  void keep(Actor& actor, bool with_start = false);
  void note(std::string kind, std::string text);

  // node_actors.cpp: the actors' processes
  void on(node_event::Spawned& event);
  void on(node_event::SpawnFailed& event);
  void on(node_event::FromHost& event);
  void on(node_event::Unread& event);
  void on(node_event::ChannelEnded& event);
  void on(node_event::LeaderEnded& event);
  void on(node_event::GroupGone& event);
  void on(node_event::ConnectionArrived& event);
  void tick_actors();
  void spawn(Actor& actor, wire::StartActor start);
  void stop(Actor& actor, Duration grace, const std::string& reason, bool drain = false);
  void drained(Actor& actor, const wire::HostDrained& report);
  void expect_health(Actor& actor);
  void health_said(Actor& actor, const Status& health);
  void unhealthy(Actor& actor, Status why);
  std::optional<TimePoint> unread_until(const Actor& actor) const;
  void kill(Actor& actor);
  void gone(Actor& actor);
  void drop_waiting(Actor& actor);
  void tell_start(const Actor& actor);
  void program_runs(Actor& actor);
  void may_come_back(Actor& actor);
  void is_over(ActorId actor_id);
  void forget(Actors::iterator actor);
  void close(FdHandle fd);

  // node_saved_state.cpp: what actors save, and where it lies
  void on(node_event::StateFetched& event);
  void on(node_event::StateRead& event);
  void save(Actor& actor, FdHandle fd);
  void drop_saved_state(Actor& actor);
  bool find_saved_state(Actor& actor, const wire::StartActor& start);
  void say_saved_states();
  bool hands_over_states() const;

  // node_packages.cpp: what jobs bring along, and what of it is not here
  struct AwaitedPackage {
    wire::Package package;
    bool fetching = false;
    TimePoint ask_at;      // the head, where it is
    TimePoint give_up_at;  // unless it is being fetched
    Status last;           // why it is not here yet
    int failures = 0;      // of fetches
  };
  void on(node_event::PackagesHere& event);
  void on(node_event::PackageNotFetched& event);
  void from_head(wire::PackageSources& sources);
  void on(node_event::NodesAsked& event);
  void from_head(wire::NodeList& list);
  void say_packages();
  Status check_package(const wire::ActorSpec& spec) const;
  bool awaits_package(const Actor& actor);
  void settle_packages();
  void give_up_package(const AwaitedPackage& awaited);
  std::vector<ActorId> waiting_for(const std::string& sha256) const;

  // node_gpus.cpp: which of them an actor has, and when it may start
  void on(node_event::GpusRead& event);
  void on(node_event::GpuFailed& event);
  bool start_queued(Actor& actor);
  std::vector<wire::GpuDevice> visit_gpus(const wire::ActorSpec& spec);
  void lose_gpu(const std::string& uuid, const std::string& why);
  void settle_gpus();
  void read_gpus();
  void keep_gpus();
  void announce_gpus();
  bool keeps_memory(const JobId& job_id) const;

  // node_reservations.cpp: what is held for placement groups
  struct Held {
    wire::Reservation reservation;
    bool committed = false;
  };
  Status check_room(const wire::Reservation& reservation) const;
  Status check_bundle(const wire::ActorSpec& spec) const;

  // node_segments.cpp: memory that outlives processes
  void keep_segment(const Actor& actor, const wire::HostKeepSegment& keep, FdHandle fd);
  void drop_segment(std::map<SegmentKey, KeptSegment>::iterator segment);
  void own_segment(const KeptSegment& segment, const SegmentKey& key);
  void attach(const Actor& actor, const wire::HostAttachSegment& request);
  bool answer(const Attach& attach);
  void settle_attaches();
  void drop_segments_of_ended_jobs();

  Actor* find(HostId host);
  Actor* find(ActorId actor_id, std::uint64_t generation);

  const NodeConfig config_;
  std::string name_;  // the head's for this node; before it has said one, the name that was wished
  TimePoint now_;
  std::vector<NodeCommand> commands_;
  Actors actors_;
  std::map<HostId, ActorId> by_host_;  // processes that are not gone
  std::deque<ActorId> ended_;          // actors that will not come back, oldest first
  // Not put down for a next daemon: the head says all of them again when that registers.
  std::map<GroupId, Held> reservations_;
  GpuDevices gpus_;
  std::int64_t gpus_announced_ = 0;
  bool gpus_asked_ = false;  // a ReadGpus has no answer yet
  std::optional<TimePoint> read_gpus_at_;
  std::set<std::string> packages_;                          // that are here, by hash
  std::set<std::string> needed_packages_;                   // … that actors here need
  std::map<std::string, AwaitedPackage> awaited_packages_;  // by hash
  std::map<SegmentKey, KeptSegment> segments_;
  std::vector<Attach> attaches_;
  bool job_may_have_ended_ = false;
  HostId next_host_ = 1;

  bool connected_ = false;
  bool registered_ = false;
  bool joined_once_ = false;
  bool ended_self_ = false;
  std::optional<Status> end_status_;  // shutting down; what to end with
  std::string end_reason_;            // where it was asked to
  // Shutting down: until when it waits for others to fetch what actors saved here.
  std::optional<TimePoint> hand_over_until_;
  bool said_farewell_ = false;
  std::vector<wire::NodeNote> notes_;  // for the head, once it is there
  TimePoint give_up_at_;
  Status last_failure_;
  std::optional<TimePoint> connect_at_;
  Duration back_off_;
  // The lease: when what the head last answered was sent.
  TimePoint contact_;
  TimePoint register_sent_at_;
  Duration heartbeat_interval_{};
  Duration heartbeat_timeout_{};
  std::optional<TimePoint> heartbeat_at_;
  std::uint64_t heartbeat_sequence_ = 0;
  std::deque<std::pair<std::uint64_t, TimePoint>> heartbeats_sent_;
};

}  // namespace troupe::scheduler

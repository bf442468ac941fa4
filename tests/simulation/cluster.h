#pragma once
// The simulated cluster: a real head state and real node states, their connections, keepers and
// processes.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "disk.h"
#include "process.h"
#include "scheduler/control/head_state.h"
#include "scheduler/head/journal.h"
#include "scheduler/node/node_state.h"
#include "world.h"

namespace troupe::simulation {

// Where a driver runs that is on no node.
inline constexpr int kOutside = -1;

// A control connection. Messages of one direction arrive in order; while the far end's node is cut
// off they wait. Where it ends, what is under way may arrive before its end, or be lost.
struct Link {
  scheduler::PeerId id = 0;
  int node = 0;  // where the far end is, or kOutside
  bool head_open = true;
  bool far_open = true;
  bool loses = true;  // what is under way, once its far end has closed
  TimePoint last_to_head{};
  TimePoint last_to_far{};
  std::deque<std::function<void()>> held;
  std::function<void(wire::ControlMessage)> on_message;
  std::function<void()> on_close;
};
using LinkPtr = std::shared_ptr<Link>;

// A caller's connection to an actor: a descriptor whose copies the node, and then the process,
// hold.
struct CallerConnection : Memory {};

struct ClusterOptions {
  int nodes = 8;
  bool boots_all = true;  // else boot_node() brings them, one by one
  std::function<wire::Resources(int node)> node_total;
  std::function<std::map<std::string, std::string>(int node)> node_labels;  // empty: none
  scheduler::HeadConfig head;
  Duration fence_grace = kTiming.fence_grace;
  // What troupe worker has: how long a keeper holds processes without a daemon.
  Duration keeper_hold = kTiming.keeper_hold;
  Duration daemon_away_most = std::chrono::milliseconds(1500);
  // Whether a node's machine can lose its power: nobody is told that its connections ended.
  bool silent_crashes = false;
  // One in so many of the control messages that can be said twice is said twice at once; 0: none.
  std::uint64_t repeats_one_in = 0;

  // --- planted mistakes
  bool tells_ends_early = false;      // a process counts as gone while it runs
  bool sends_before_journal = false;  // the head's commands leave before its decisions are kept
  bool journals_one_by_one = false;   // decisions that belong together may be torn apart
  std::uint64_t loses_one_in = 0;     // messages from the head on a connection that stays; 0: none
  bool leaks_descriptors = false;     // some are never closed
  bool forgets_records = false;       // the keeper does not hold all that it is given
  bool starts_twice = false;          // a keeper starts two processes for one wish
  bool loses_releases = false;        // some nodes do not hear that a group's bundles are released
  bool loses_exits = false;           // the head does not hear of some processes' ends
  bool forgets_leases = false;        // a new head does not know some that the one before had given
  bool answers_twice = false;         // some answers of the head arrive twice
  bool fences_all = false;            // nodes end every actor with their lease
  bool keeps_stale = false;           // nodes that return do not end what the head does not want

  // --- for whoever watches
  // Decisions of the head, before anybody hears of them.
  std::function<void(const std::vector<scheduler::Delta>&)> on_decisions;
  // A head has replayed its journal.
  std::function<void()> on_head_start;
};

class Cluster {
 public:
  using Factory = std::function<std::unique_ptr<Process>(Process::Place)>;
  Cluster(World& world, ClusterOptions options, Factory factory);
  ~Cluster();

  World& world() { return world_; }
  // Whether everything is where it should be, without faults that last.
  bool whole() const;

  // --- connections to the head
  // Null where the head cannot be reached.
  LinkPtr connect(int node, std::function<void(wire::ControlMessage)> on_message,
                  std::function<void()> on_close);
  void send_to_head(const LinkPtr& link, wire::ControlMessage message);
  // `loses`: what is under way in either direction.
  void close_from_far(const LinkPtr& link, bool loses = true);
  // A caller's connection to an actor on the node of this id: given to the node, or why not.
  Status connect_actor(NodeId node, ActorId actor, std::shared_ptr<CallerConnection> connection);

  // --- processes
  Process* find(std::uint64_t pid);
  // The process of this actor that answers calls now.
  Process* ready_process(ActorId actor);
  std::vector<Process*> living(const std::string& type);
  const std::map<std::uint64_t, std::unique_ptr<Process>>& processes() const { return processes_; }
  std::vector<std::uint64_t> living_pids() const;
  // host → node.
  void tell_node(Process& process, wire::HostMessage message, MemoryPtr memory = nullptr);
  // Runs `what` in the actor's process when a call gets there, after earlier calls of the sender to
  // it. Repeats: until an answer was on its way back, in whatever process there is then. `failed`,
  // in the sender, where no process took it in time.
  struct Call {
    std::function<void(Process&)> what;
    bool repeats = false;
    Duration timeout = std::chrono::seconds(10);
    std::function<void()> failed;
  };
  void call(Process& from, ActorId to, Call call);

  // --- faults
  void kill(Process& process, const char* why);
  // kill -9 by somebody else.
  void kill_from_outside(Process& process);
  void crash_head();
  // In its next append to the journal, or between the commands that follow.
  void crash_head_in_flush() { head_dies_in_flush_ = true; }
  void start_head();
  // The head's process stands still, and goes on: whoever talks to it waits meanwhile.
  void freeze_head();
  void thaw_head();
  bool head_frozen() const { return head_frozen_; }
  // How often a process began while an older one of its actor lived on, as it may (OnHeadLoss).
  int overlaps() const { return overlaps_; }
  bool head_up() const { return head_ != nullptr; }
  std::uint64_t heads() const { return heads_; }
  bool head_is_to_die() const { return head_dies_in_flush_; }
  void cut(int node);
  void mend(int node);
  void break_link(int node);
  void crash_node(int node);
  void boot_node(int node);
  // Its operator ends it: actors first, and it says farewell.
  void leave(int node);
  // Every process of it stands still, the daemon's and the keeper's too.
  void freeze(int node);
  void thaw(int node);
  // At its next command.
  void kill_daemon(int node);
  void kill_keeper(int node);
  // Whether the node's keeper has the job's segment of this name.
  bool keeps(int node, JobId job, const std::string& name) const;
  // Changes whenever what the node keeps for its jobs is lost.
  std::uint64_t memory_life(int node) const {
    return nodes_[static_cast<std::size_t>(node)].memory_life;
  }
  // Whether what the node kept in that life is there.
  bool has_memory(int node, std::uint64_t life) const {
    return node_up(node) && memory_life(node) == life;
  }
  int nodes() const { return static_cast<int>(nodes_.size()); }
  bool node_up(int node) const { return at(node).up; }
  // Its machine lost its power, and nobody was told that its connections ended.
  bool died_silently(int node) const { return at(node).silent; }
  std::uint64_t boots(int node) const { return at(node).boots; }
  // Not cut off, not frozen, with a daemon, for so long.
  bool node_well(int node) const;
  NodeId node_id(int node) const { return at(node).id; }
  std::size_t descriptors(int node) const { return at(node).descriptors.size(); }
  // Of what the node's daemon put down.
  std::vector<std::string> records(int node) const;
  // What it holds for placement groups; nothing without a daemon.
  std::vector<wire::Reservation> reservations(int node) const;
  // Its living processes.
  std::vector<const Process*> running(int node) const;

  const scheduler::HeadState* head() const { return head_.get(); }
  // What every part waits for, for a report of a run that does not go on.
  std::string describe() const;

 private:
  struct Host {
    std::uint64_t pid = 0;
    bool kill_wanted = false;
    bool leader_told = false;
    bool gone_told = false;
    bool stop_told = false;  // it has some time to finish
    TimePoint last_to_node{};
    wire::ExitStatus exit;
  };
  struct Kept {
    wire::KeeperMessage record;
    MemoryPtr memory;
    std::optional<wire::StartActor> start;
  };
  struct Node {
    NodeId id;
    wire::Resources total;
    bool up = false;
    bool is_cut = false;
    bool frozen = false;
    bool silent = false;  // it died so
    bool daemon_dies = false;
    TimePoint excused_until{};  // it stood still: its processes may not know yet that they are over
    std::uint64_t boots = 0;    // of the machine
    std::uint64_t memory_life = 1;
    std::uint64_t daemons = 0;  // of its daemon
    std::unique_ptr<scheduler::NodeState> state;
    LinkPtr link;
    std::vector<std::weak_ptr<Link>> links;  // all whose far end is here
    std::uint64_t connecting = 0;
    TimePoint lease_end{};  // as the keeper was told; the clock's begin: none
    std::optional<TimePoint> tick_at;
    std::deque<scheduler::NodeEvent> soon;    // of its daemon's own doing
    std::deque<std::function<void()>> later;  // while it is frozen
    std::vector<std::uint64_t> frozen_pids;
    std::map<scheduler::FdHandle, MemoryPtr> descriptors;
    // The keeper's.
    std::map<scheduler::HostId, Host> hosts;
    std::map<std::string, Kept> kept;
    std::deque<std::function<void()>> unread;  // what hosts said while there was no daemon
  };

  Node& at(int number) { return nodes_[static_cast<std::size_t>(number)]; }
  const Node& at(int number) const { return nodes_[static_cast<std::size_t>(number)]; }
  bool is_cut(int number) const { return number != kOutside && at(number).is_cut; }

  // head.cpp
  scheduler::Moment moment() const;
  void feed_head(scheduler::Event event);
  void take(scheduler::Outcome outcome);
  void check_head();
  void flush_head();
  void crash_head_after(std::vector<scheduler::Command>& commands);
  void carry_out(scheduler::Command& command);
  bool is_lost(const wire::ControlMessage& message);
  bool keep_decisions(const std::vector<scheduler::Delta>& deltas);
  void arm_head();
  void when_head_runs(std::function<void()> what);
  void send_to_far(const LinkPtr& link, wire::ControlMessage message);
  void close_from_head(const LinkPtr& link);
  void through(const LinkPtr& link, TimePoint& last, std::function<void()> what);
  bool is_repeated(const wire::ControlMessage& message);
  void flush(const LinkPtr& link);

  void feed_node(int number, scheduler::NodeEvent event);
  void arm_node(int number);
  void start_daemon(int number);
  void lose_daemon(int number);
  void keeper_looks(int number);
  void end_processes(int number);
  void node_gone(int number);
  void began(const Process& process);
  void die(Process& process);
  bool excused(int number) const;
  void check_alone(const Process& process) const;
  bool may_run_twice(const Process& process) const;
  bool may_overlap(const Process& one, const Process& other) const;
  void check_no_end(int number, const std::vector<scheduler::NodeCommand>& commands) const;
  void expect_end_of_stale(int number);
  void plant(scheduler::NodeEvent& event) const;
  void check_room(int number) const;
  // When the node does not stand still.
  void when_awake(int number, std::function<void()> what);
  void from_host(int number, scheduler::HostId host, std::function<void()> what);
  scheduler::FdHandle hold(Node& node, MemoryPtr memory);
  MemoryPtr held(Node& node, scheduler::FdHandle fd);
  void process_died(std::uint64_t pid);
  void tell_leader_ended(int number, scheduler::HostId host);
  void tell_group_gone(int number, scheduler::HostId host);

  void carry_out(int number, scheduler::node_command::ConnectHead& command);
  void carry_out(int number, scheduler::node_command::DropHead& command);
  void carry_out(int number, scheduler::node_command::SendHead& command);
  void carry_out(int number, scheduler::node_command::ReportExit& command);
  void carry_out(int number, scheduler::node_command::SpawnHost& command);
  void carry_out(int number, scheduler::node_command::TellHost& command);
  void carry_out(int number, scheduler::node_command::KillGroup& command);
  void carry_out(int number, scheduler::node_command::CloseFd& command);
  void carry_out(int number, scheduler::node_command::ForgetHost& command);
  void carry_out(int number, scheduler::node_command::FetchState& command);
  void fetch_state(int number, scheduler::node_command::FetchState command, int attempts);
  void check_state(const wire::HostStart& start, const MemoryPtr& saved) const;
  void carry_out(int number, scheduler::node_command::ReadGpus& command);
  void carry_out(int number, scheduler::node_command::FetchPackage& command);
  void carry_out(int number, scheduler::node_command::NeedPackages& command);
  void carry_out(int number, scheduler::node_command::TellNodes& command);
  void carry_out(int number, scheduler::node_command::Registered& command);
  void carry_out(int number, scheduler::node_command::Keep& command);
  void carry_out(int number, scheduler::node_command::Unkeep& command);
  void carry_out(int number, scheduler::node_command::Warn& command);
  void carry_out(int number, scheduler::node_command::EndNode& command);

  struct Route {
    std::deque<Call> calls;
    std::deque<TimePoint> until;
    bool busy = false;
  };
  void pump(std::uint64_t from, ActorId to);

  World& world_;
  const ClusterOptions options_;
  const Factory factory_;
  std::unique_ptr<scheduler::HeadState> head_;
  std::uint64_t heads_ = 0;
  Disk disk_;
  std::unique_ptr<scheduler::Journal> journal_;
  std::vector<scheduler::Delta> head_deltas_;  // decided, not kept yet
  std::vector<scheduler::Command> head_commands_;
  bool flush_posted_ = false;
  bool head_dies_in_flush_ = false;
  bool head_frozen_ = false;
  std::deque<std::function<void()>> head_later_;  // while it is frozen
  std::size_t unchecked_ = 0;  // events since the head's invariants were looked at
  std::map<scheduler::PeerId, LinkPtr> links_;
  scheduler::PeerId next_peer_ = 1;
  std::optional<TimePoint> head_tick_;

  std::vector<Node> nodes_;
  std::map<NodeId, int> by_id_;
  std::map<std::uint64_t, std::unique_ptr<Process>> processes_;
  std::map<ActorId, std::uint64_t> newest_;  // process by actor
  std::map<ActorId, std::vector<std::uint64_t>> living_;
  std::set<scheduler::LeaseKey> spawned_;
  // What the head asked a node to start, when it did last.
  struct Asked {
    NodeId node_id;
    TimePoint at;
    wire::OnHeadLoss on_head_loss{};
  };
  std::map<scheduler::LeaseKey, Asked> asked_;
  // When a head declared it lost, last.
  std::map<NodeId, TimePoint> declared_lost_;
  int overlaps_ = 0;
  std::uint64_t next_pid_ = 100;
  scheduler::FdHandle next_fd_ = 1;
  std::map<std::pair<std::uint64_t, ActorId>, Route> routes_;
  // The newest process of an actor that has called this process: it refuses older ones.
  std::map<std::pair<std::uint64_t, ActorId>, std::uint64_t> callers_;
};

}  // namespace troupe::simulation

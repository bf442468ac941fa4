#pragma once
// The simulated cluster: a real head state and real node states, their connections, keepers and
// processes.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "process.h"
#include "scheduler/control/head_state.h"
#include "scheduler/node/node_state.h"
#include "world.h"

namespace troupe::simulation {

// A control connection. Messages of one direction arrive in order; while the far end's node is cut
// off they wait.
struct Link {
  scheduler::PeerId id = 0;
  int node = 0;  // where the far end is
  bool head_open = true;
  bool far_open = true;
  TimePoint last_to_head{};
  TimePoint last_to_far{};
  std::deque<std::function<void()>> held;
  std::function<void(wire::ControlMessage)> on_message;
  std::function<void()> on_close;
};
using LinkPtr = std::shared_ptr<Link>;

class Cluster {
 public:
  using Factory = std::function<std::unique_ptr<Process>(Process::Place)>;
  Cluster(World& world, Factory factory);
  ~Cluster();

  World& world() { return world_; }
  // Whether everything is where it should be, without faults that last.
  bool whole() const;

  // --- connections to the head
  // Null where the head cannot be reached.
  LinkPtr connect(int node, std::function<void(wire::ControlMessage)> on_message,
                  std::function<void()> on_close);
  void send_to_head(const LinkPtr& link, wire::ControlMessage message);
  void close_from_far(const LinkPtr& link);

  // --- processes
  Process* find(std::uint64_t pid);
  // The process of this actor that answers calls now.
  Process* ready_process(ActorId actor);
  std::vector<Process*> living(const std::string& type);
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
  void start_head();
  bool head_up() const { return head_ != nullptr; }
  void cut(int node);
  void mend(int node);
  void break_link(int node);
  void crash_node(int node);
  void boot_node(int node);
  // At its next command.
  void kill_daemon(int node);
  void kill_keeper(int node);
  // Whether the node's keeper has the job's segment of this name.
  bool keeps(int node, JobId job, const std::string& name) const;
  // Changes whenever what the node keeps for its jobs is lost.
  std::uint64_t memory_life(int node) const {
    return nodes_[static_cast<std::size_t>(node)].memory_life;
  }
  int nodes() const { return static_cast<int>(nodes_.size()); }

  const scheduler::HeadState* head() const { return head_.get(); }
  // What every part waits for, for a report of a run that does not go on.
  std::string describe() const;

 private:
  struct Host {
    std::uint64_t pid = 0;
    bool kill_wanted = false;
    bool leader_told = false;
    bool gone_told = false;
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
    bool up = false;
    bool is_cut = false;
    bool daemon_dies = false;
    TimePoint spared_until{};
    std::uint64_t boots = 0;  // of the machine
    std::uint64_t memory_life = 1;
    std::uint64_t daemons = 0;  // of its daemon
    std::unique_ptr<scheduler::NodeState> state;
    LinkPtr link;
    std::vector<std::weak_ptr<Link>> links;  // all whose far end is here
    std::uint64_t connecting = 0;
    std::optional<TimePoint> tick_at;
    std::deque<scheduler::NodeEvent> soon;  // of its daemon's own doing
    std::map<scheduler::FdHandle, MemoryPtr> descriptors;
    // The keeper's.
    std::map<scheduler::HostId, Host> hosts;
    std::map<std::string, Kept> kept;
    std::deque<std::function<void()>> unread;  // what hosts said while there was no daemon
  };

  void feed_head(scheduler::Event event);
  void take(const scheduler::Outcome& outcome);
  void arm_head();
  void send_to_far(const LinkPtr& link, wire::ControlMessage message);
  void close_from_head(const LinkPtr& link);
  void through(const LinkPtr& link, TimePoint& last, std::function<void()> what);
  void flush(const LinkPtr& link);

  void feed_node(int number, scheduler::NodeEvent event);
  void arm_node(int number);
  void start_daemon(int number);
  void lose_daemon(int number);
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
  const Factory factory_;
  scheduler::HeadConfig head_config_;
  std::unique_ptr<scheduler::HeadState> head_;
  std::uint64_t heads_ = 0;
  std::vector<std::vector<std::byte>> journal_;
  std::map<scheduler::PeerId, LinkPtr> links_;
  scheduler::PeerId next_peer_ = 1;
  std::optional<TimePoint> head_tick_;

  std::vector<Node> nodes_;
  std::map<std::uint64_t, std::unique_ptr<Process>> processes_;
  std::map<ActorId, std::uint64_t> newest_;  // process by actor
  std::uint64_t next_pid_ = 100;
  scheduler::FdHandle next_fd_ = 1;
  std::map<std::pair<std::uint64_t, ActorId>, Route> routes_;
};

}  // namespace troupe::simulation

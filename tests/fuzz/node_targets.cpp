// What heads and actors' processes may say to a node in any order, against the node's state
// machine.

#include <set>
#include <variant>

#include "runtime/base/check.h"
#include "scheduler/node/node_state.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/runtime/wire/every_message.h"

namespace troupe::tests {
namespace {

using namespace scheduler;

constexpr int kFuzzNodeEventsMax = 64;
constexpr NodeId kFuzzNode{2, 1};
constexpr ActorId kFuzzActor{1, 1};

enum class NodeFuzzEvent : std::uint8_t {
  kHeadSays,
  kHostSays,
  kHostSaysWithDescriptor,
  kConnection,
  kProcesses,  // those that are to start do, or not
  kProcessEnds,
  kLink,
  kTime,
};
constexpr std::uint8_t kNodeFuzzEvents = 8;

// Plays the operating system: processes start and end, descriptors are open until they are closed.
class FuzzedNode {
 public:
  FuzzedNode() { apply(node_event::Tick{}); }
  void head_says(std::span<const std::byte> frame) {
    auto message = wire::decode_control(frame);
    if (message.ok() && link_ == Link::kUp) apply(node_event::FromHead{std::move(*message)});
  }
  void host_says(std::uint8_t which, std::span<const std::byte> frame, bool with_descriptor) {
    auto message = wire::decode_host(frame);
    if (!message.ok() || running_.empty()) return;
    apply(node_event::FromHost{pick(running_, which), std::move(*message),
                               with_descriptor ? open() : kNoFd});
  }
  void connection(std::uint8_t which) {
    const ActorId actor = which % 2 == 0 ? kFuzzActor : ActorId{1, which};
    apply(node_event::ConnectionArrived{actor, open(), {"actor/x", "peer", which % 3 == 0}});
  }
  void processes(std::uint8_t how) {
    for (const HostId host : std::exchange(spawning_, {})) {
      if (how % 4 == 0) {
        apply(node_event::SpawnFailed{host, Status(Code::kNotFound, "no such program")});
        continue;
      }
      running_.insert(host);
      apply(node_event::Spawned{host, 100 + static_cast<std::int64_t>(host)});
    }
  }
  void process_ends(std::uint8_t which) {
    if (which % 4 == 3 && !running_.empty()) {
      apply(node_event::ChannelEnded{pick(running_, which), Status(Code::kProtocol, "x")});
    } else if (which % 2 == 0 && !running_.empty()) {
      const HostId host = pick(running_, which);
      running_.erase(host);
      ended_.insert(host);
      apply(node_event::LeaderEnded{host, {0, 9}});
    } else if (!ended_.empty()) {
      const HostId host = pick(ended_, which);
      ended_.erase(host);
      apply(node_event::GroupGone{host});
    }
  }
  void link(std::uint8_t how) {
    if (how % 8 == 7) return apply(node_event::ShutDown{"x"});
    if (link_ == Link::kAsked && how % 2 == 0) {
      link_ = Link::kUp;
      apply(node_event::HeadUp{});
    } else if (link_ != Link::kNone) {
      link_ = Link::kNone;
      apply(node_event::HeadDown{Status(Code::kUnavailable, "x")});
    }
  }
  void pass(std::uint8_t tenths) {
    now_ += std::chrono::milliseconds(100 * tenths);
    apply(node_event::Tick{});
  }

 private:
  enum class Link { kNone, kAsked, kUp };

  static HostId pick(const std::set<HostId>& hosts, std::uint8_t which) {
    return *std::next(hosts.begin(), which % hosts.size());
  }
  FdHandle open() {
    open_.insert(next_fd_);
    return next_fd_++;
  }
  void apply(NodeEvent event) {
    for (const NodeCommand& command : state_.apply(std::move(event), now_)) account(command);
    const auto broken = state_.broken_invariant();
    TROUPE_CHECK(!broken, "{}", *broken);
    // Or the node would do nothing else.
    const auto due = state_.next_deadline();
    TROUPE_CHECK(!due || *due > now_);
  }
  void account(const NodeCommand& command) {
    if (const auto* close = get_if<node_command::CloseFd>(&command)) {
      TROUPE_CHECK(open_.erase(close->fd) == 1);
    } else if (const auto* spawn = get_if<node_command::SpawnHost>(&command)) {
      TROUPE_CHECK(spawning_.insert(spawn->host).second);
    } else if (const auto* tell = get_if<node_command::TellHost>(&command)) {
      TROUPE_CHECK(tell->fd == kNoFd || open_.contains(tell->fd));
      TROUPE_CHECK(running_.contains(tell->host));
    } else if (const auto* kill = get_if<node_command::KillGroup>(&command)) {
      TROUPE_CHECK(running_.contains(kill->host) || ended_.contains(kill->host));
    } else if (holds_alternative<node_command::ConnectHead>(command)) {
      TROUPE_CHECK(link_ == Link::kNone);
      link_ = Link::kAsked;
    } else if (holds_alternative<node_command::DropHead>(command)) {
      link_ = Link::kNone;
    }
  }

  TimePoint now_{std::chrono::hours(1)};
  NodeConfig config_ = [] {
    NodeConfig config;
    config.node.node_id = kFuzzNode;
    config.segments_max = 4;
    config.ended_actors_max = 3;
    return config;
  }();
  scheduler::NodeState state_{config_, now_};
  Link link_ = Link::kNone;
  FdHandle next_fd_ = 1;
  std::set<FdHandle> open_;
  std::set<HostId> spawning_, running_, ended_;
};

void run_node(std::span<const std::byte> input) {
  FuzzInput in(input);
  FuzzedNode node;
  for (int i = 0; i < kFuzzNodeEventsMax && !in.empty(); ++i) {
    const std::uint8_t control = in.u8();
    const std::uint8_t which = control / kNodeFuzzEvents;
    switch (static_cast<NodeFuzzEvent>(control % kNodeFuzzEvents)) {
      case NodeFuzzEvent::kHeadSays:
        node.head_says(in.piece());
        break;
      case NodeFuzzEvent::kHostSays:
        node.host_says(which, in.piece(), false);
        break;
      case NodeFuzzEvent::kHostSaysWithDescriptor:
        node.host_says(which, in.piece(), true);
        break;
      case NodeFuzzEvent::kConnection:
        node.connection(which);
        break;
      case NodeFuzzEvent::kProcesses:
        node.processes(which);
        break;
      case NodeFuzzEvent::kProcessEnds:
        node.process_ends(which);
        break;
      case NodeFuzzEvent::kLink:
        node.link(which);
        break;
      case NodeFuzzEvent::kTime:
        node.pass(in.u8());
        break;
    }
  }
}

class NodeSeed {
 public:
  NodeSeed& event(NodeFuzzEvent event, std::uint8_t which = 0) {
    seed_.u8(static_cast<std::uint8_t>(static_cast<std::uint8_t>(event) + kNodeFuzzEvents * which));
    return *this;
  }
  NodeSeed& head(const wire::ControlMessage& message) {
    event(NodeFuzzEvent::kHeadSays);
    seed_.piece(wire::encode(message));
    return *this;
  }
  NodeSeed& host(const wire::HostMessage& message, bool with_descriptor = false) {
    event(with_descriptor ? NodeFuzzEvent::kHostSaysWithDescriptor : NodeFuzzEvent::kHostSays);
    seed_.piece(wire::encode(message));
    return *this;
  }
  NodeSeed& pass(std::uint8_t tenths) {
    event(NodeFuzzEvent::kTime);
    seed_.u8(tenths);
    return *this;
  }
  FuzzBytes take() { return seed_.take(); }

 private:
  FuzzSeed seed_;
};

// A node that has joined and runs an actor.
NodeSeed running_node() {
  wire::RegisterNodeReply joined;
  joined.heartbeat_interval_ms = 500;
  joined.heartbeat_timeout_ms = 3000;
  wire::StartActor start;
  start.spec.actor_id = kFuzzActor;
  start.spec.job_id = JobId{4, 1};
  start.spec.restart.max_restarts = 1;
  start.generation = 1;
  NodeSeed seed;
  seed.event(NodeFuzzEvent::kLink).head(joined).head(start);
  seed.event(NodeFuzzEvent::kProcesses, 1).host(wire::HostReady{});
  return seed;
}

std::vector<FuzzBytes> node_seeds() {
  std::vector<FuzzBytes> seeds;
  seeds.push_back(running_node()
                      .host(wire::HostSavedState{1}, true)
                      .host(wire::HostKeepSegment{"s", false}, true)
                      .event(NodeFuzzEvent::kConnection)
                      .event(NodeFuzzEvent::kProcessEnds, 0)
                      .event(NodeFuzzEvent::kConnection)
                      .event(NodeFuzzEvent::kProcessEnds, 1)
                      .take());
  seeds.push_back(running_node()
                      .host(wire::HostKeepSegment{"s", false}, true)
                      .host(wire::HostAttachSegment{1, "s", 1000})
                      .head(wire::StopActor{kFuzzActor, 1, 100, "x", true})
                      .pass(2)
                      .event(NodeFuzzEvent::kLink, 1)
                      .pass(100)
                      .take());
  seeds.push_back(running_node().event(NodeFuzzEvent::kLink, 7).pass(30).take());
  wire::StartActor program;
  program.spec.actor_id = ActorId{1, 9};
  program.spec.program = {{"/bin/true"}, "/"};
  program.generation = 1;
  seeds.push_back(running_node()
                      .head(program)
                      .event(NodeFuzzEvent::kProcesses, 1)
                      .head(wire::StopActor{ActorId{1, 9}, 1, 100, "x", false})
                      .event(NodeFuzzEvent::kProcessEnds, 0)
                      .pass(2)
                      .event(NodeFuzzEvent::kProcessEnds, 1)
                      .take());
  for (const auto& message : every_message<wire::ControlMessage>().filled)
    seeds.push_back(running_node().head(message).pass(30).take());
  bool with_descriptor = false;
  for (const auto& message : every_message<wire::HostMessage>().filled) {
    seeds.push_back(running_node()
                        .host(message, with_descriptor)
                        .event(NodeFuzzEvent::kProcessEnds, 0)
                        .event(NodeFuzzEvent::kProcessEnds, 1)
                        .take());
    with_descriptor = !with_descriptor;
  }
  return seeds;
}

}  // namespace

constinit const FuzzTarget kNodeTarget{"node", "what a head and actors' processes say to a node",
                                       8192, &run_node, &node_seeds};

}  // namespace troupe::tests

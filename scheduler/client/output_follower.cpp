#include "scheduler/client/output_follower.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/net/connection.h"

namespace troupe::scheduler {
namespace {

constexpr Duration kFollowAttempt = std::chrono::seconds(5);
constexpr Duration kFollowAgainFirst = std::chrono::milliseconds(50);
constexpr Duration kFollowAgainMost = std::chrono::seconds(2);
constexpr Duration kFollowerEnd = std::chrono::seconds(10);

}  // namespace

// All members are the loop thread's.
struct OutputFollower::State : std::enable_shared_from_this<OutputFollower::State> {
  struct Node {
    wire::Endpoint endpoint;
    bool alive = false;
    bool connecting = false;
    bool failed = false;  // the last attempt; nobody waits for it
    Duration pause = kFollowAgainFirst;
    std::shared_ptr<net::Connection> connection;
    std::uint64_t asked = 0;                // the last request of this connection
    std::uint64_t answered = 0;             // the last of them that was answered
    std::map<ActorId, std::uint64_t> last;  // line passed on, by actor
    std::set<ActorId> heard;                // on this connection
  };
  struct Waiting {
    std::map<NodeId, std::uint64_t> until;  // node → request whose answer is waited for
    std::shared_ptr<std::promise<void>> done;
  };

  State(net::EventLoop& l, std::shared_ptr<HeadClient> h, net::Token t, OutputFollowerOptions o)
      : loop(l), head(std::move(h)), token(std::move(t)), options(std::move(o)) {}

  void on_node(const wire::NodeInfo& info);
  void connect(NodeId id);
  void connected(NodeId id, ByteStream socket);
  void lost(NodeId id, const net::Connection* connection);
  void try_again(NodeId id);
  std::uint64_t ask(NodeId id);
  void received(NodeId id, std::span<const std::byte> frame);
  void pass_on(Node& node, const wire::OutputLine& line);
  void wait(std::shared_ptr<std::promise<void>> done);
  void settle();

  net::EventLoop& loop;
  const std::shared_ptr<HeadClient> head;
  const net::Token token;
  const OutputFollowerOptions options;
  bool closed = false;
  std::map<NodeId, Node> nodes;
  std::vector<Waiting> waiting;
};

// --- nodes --------------------------------------------------------------------------------------

void OutputFollower::State::on_node(const wire::NodeInfo& info) {
  if (closed || info.node_id == options.except) return;
  Node& node = nodes[info.node_id];
  node.endpoint = info.endpoint;
  // One that drains still has actors that write.
  node.alive = info.state != wire::NodeState::kDead;
  if (!node.alive) {
    if (node.connection) node.connection->close();
    node.connection.reset();
    return settle();
  }
  if (!node.connection && !node.connecting) connect(info.node_id);
}

void OutputFollower::State::connect(NodeId id) {
  Node& node = nodes.at(id);
  node.connecting = true;
  net::connect(loop, {node.endpoint.host, node.endpoint.port, {}}, "node", token,
               Deadline::after(kFollowAttempt, loop.clock()),
               [self = shared_from_this(), id](Result<ByteStream> socket) {
                 if (self->closed) return;
                 Node& same = self->nodes.at(id);
                 same.connecting = false;
                 if (!same.alive) return;
                 if (socket.ok()) return self->connected(id, std::move(*socket));
                 same.failed = true;
                 self->try_again(id);
                 self->settle();
               });
}

void OutputFollower::State::try_again(NodeId id) {
  Node& node = nodes.at(id);
  node.connecting = true;
  loop.call_after(node.pause, [weak = weak_from_this(), id] {
    const auto self = weak.lock();
    if (!self || self->closed) return;
    Node& same = self->nodes.at(id);
    same.connecting = false;
    if (same.alive && !same.connection) self->connect(id);
  });
  node.pause = std::min(2 * node.pause, kFollowAgainMost);
}

void OutputFollower::State::connected(NodeId id, ByteStream socket) {
  Node& node = nodes.at(id);
  node.failed = false;
  node.heard.clear();
  node.asked = node.answered = 0;
  auto connection = net::make_connection(loop, std::move(socket), node.endpoint.to_string());
  node.connection = connection;
  const std::weak_ptr<State> weak = weak_from_this();
  connection->start({.on_frame =
                         [weak, id](std::span<const std::byte> frame) {
                           if (auto self = weak.lock()) self->received(id, frame);
                         },
                     .on_close =
                         [weak, id, own = connection.get()](Status) {
                           if (auto self = weak.lock()) self->lost(id, own);
                         }});
  ask(id);
  for (auto& entry : waiting) {
    if (const auto awaited = entry.until.find(id); awaited != entry.until.end())
      awaited->second = node.asked;
  }
  settle();
}

void OutputFollower::State::lost(NodeId id, const net::Connection* connection) {
  if (closed) return;
  Node& node = nodes.at(id);
  if (node.connection.get() != connection) return;
  node.connection.reset();
  // A node cuts off a driver that reads too slowly: what it keeps comes with the next connection.
  // Who waits for it goes on waiting until that one has answered, or cannot be made.
  if (node.alive) try_again(id);
  settle();
}

std::uint64_t OutputFollower::State::ask(NodeId id) {
  Node& node = nodes.at(id);
  const Status sent = node.connection->send(wire::encode(wire::FollowOutput{
      .request_id = ++node.asked, .job_id = options.job_id, .actor_id = options.actor_id}));
  // One that has ended says so by itself; one that takes nothing more is given up.
  if (!sent.ok() && sent.code() != Code::kUnavailable) {
    node.connection->close();
    loop.post([weak = weak_from_this(), id, full = node.connection] {
      if (auto self = weak.lock()) self->lost(id, full.get());
    });
  }
  return node.asked;
}

// --- lines --------------------------------------------------------------------------------------

void OutputFollower::State::received(NodeId id, std::span<const std::byte> frame) {
  if (closed) return;
  Node& node = nodes.at(id);
  const auto message = wire::decode_control(frame);
  if (!message.ok()) {
    // No node of ours: it is asked again later, as one that is away.
    const auto connection = node.connection;
    if (connection) connection->close();
    return lost(id, connection.get());
  }
  if (const auto* line = get_if<wire::OutputLine>(&*message)) {
    pass_on(node, *line);
  } else if (const auto* reply = get_if<wire::Reply>(&*message)) {
    node.answered = std::max(node.answered, reply->request_id);
    node.pause = kFollowAgainFirst;
    settle();
  }
}

void OutputFollower::State::pass_on(Node& node, const wire::OutputLine& line) {
  std::uint64_t& last = node.last[line.actor_id];
  const bool first = node.heard.insert(line.actor_id).second;
  if (line.number <= last && !line.notice) return;  // said on the connection before
  if (first && !line.notice && line.number > last + 1) {
    wire::OutputLine missing = line;
    missing.notice = true;
    missing.text = fmt::format(
        "... {} lines left out: they were written faster than this driver read them, or while it "
        "was not connected to the node",
        line.number - last - 1);
    options.on_output(missing);
  }
  // A part has the number of the line to come.
  if (!line.is_part()) last = std::max(last, line.number);
  options.on_output(line);
}

// --- catching up --------------------------------------------------------------------------------

void OutputFollower::State::wait(std::shared_ptr<std::promise<void>> done) {
  Waiting entry{{}, std::move(done)};
  for (auto& [id, node] : nodes) {
    if (!node.alive || (!node.connection && node.failed)) continue;
    entry.until[id] = node.connection ? ask(id) : 1;
  }
  waiting.push_back(std::move(entry));
  settle();
}

void OutputFollower::State::settle() {
  for (auto& entry : waiting) {
    std::erase_if(entry.until, [this](const auto& awaited) {
      const Node& node = nodes.at(awaited.first);
      return !node.alive || node.failed || node.answered >= awaited.second;
    });
    if (entry.until.empty()) std::exchange(entry.done, nullptr)->set_value();
  }
  std::erase_if(waiting, [](const Waiting& entry) { return entry.done == nullptr; });
}

// --- the follower -------------------------------------------------------------------------------

namespace {

OutputFollowerOptions with_on_output(OutputFollowerOptions options) {
  if (options.on_output) return options;
  TROUPE_CHECK(options.on_line != nullptr);
  options.on_output = [on_line = std::move(options.on_line)](const wire::OutputLine& line) {
    if (!line.is_part()) on_line(line.label, line.text);
  };
  return options;
}

}  // namespace

OutputFollower::OutputFollower(net::EventLoop& loop, std::shared_ptr<HeadClient> head,
                               net::Token token, OutputFollowerOptions options)
    : state_(std::make_shared<State>(loop, std::move(head), std::move(token),
                                     with_on_output(std::move(options)))) {
  state_->head->watch_nodes([weak = std::weak_ptr<State>(state_)](const wire::NodeInfo& node) {
    if (auto self = weak.lock()) self->on_node(node);
  });
}

OutputFollower::~OutputFollower() { close(); }

bool OutputFollower::catch_up(Duration timeout) {
  auto done = std::make_shared<std::promise<void>>();
  auto caught_up = done->get_future();
  // Behind the nodes that the watch told: the head answers in order.
  state_->head->list_nodes([weak = std::weak_ptr<State>(state_), done](const auto&) {
    if (auto self = weak.lock(); self && !self->closed) self->wait(done);
  });
  return caught_up.wait_for(timeout) == std::future_status::ready;
}

void OutputFollower::close() {
  const auto done = std::make_shared<std::promise<void>>();
  auto ended = done->get_future();
  const auto end = [state = state_] {
    state->closed = true;
    for (auto& [id, node] : state->nodes) {
      if (node.connection) node.connection->close();
      node.connection.reset();
    }
    state->waiting.clear();
  };
  if (state_->loop.in_loop_thread()) return end();
  state_->loop.post([end, done] {
    end();
    done->set_value();
  });
  ended.wait_for(kFollowerEnd);
}

}  // namespace troupe::scheduler

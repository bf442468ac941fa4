#include "scheduler/client/ask_node.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/net/connection.h"

namespace troupe::scheduler {

// The loop's thread writes, the asking one waits.
struct NodeConnection::State {
  std::string where;
  std::shared_ptr<net::Connection> connection;
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Result<wire::ControlMessage>> answer;  // a failure stays

  void give(Result<wire::ControlMessage> result) {
    const std::lock_guard lock(mutex);
    if (!answer) answer = std::move(result);
    changed.notify_all();
  }
};

NodeConnection::NodeConnection(std::shared_ptr<State> state) : state_(std::move(state)) {}
NodeConnection::~NodeConnection() { state_->connection->close(); }

Result<std::unique_ptr<NodeConnection>> NodeConnection::open(net::EventLoop& loop,
                                                             const net::Address& node,
                                                             const std::string& target,
                                                             const net::Token& token,
                                                             Deadline deadline) {
  TROUPE_CHECK(!loop.in_loop_thread());
  const auto state = std::make_shared<State>();
  state->where = "node at " + node.to_string();
  auto socket = net::connect_blocking(node, target, token, deadline);
  if (!socket.ok()) return socket.status().prefixed(state->where);
  state->connection = net::make_connection(loop, std::move(*socket), state->where);
  // The connection's handlers must not own it.
  loop.post([connection = state->connection, weak = std::weak_ptr<State>(state)] {
    const auto give = [weak](Result<wire::ControlMessage> result) {
      if (const auto self = weak.lock()) self->give(std::move(result));
    };
    connection->start(
        {.on_frame =
             [give](std::span<const std::byte> bytes) { give(wire::decode_control(bytes)); },
         .on_close = [give](Status why) { give(std::move(why)); }});
  });
  return std::unique_ptr<NodeConnection>(new NodeConnection(state));
}

Result<wire::ControlMessage> NodeConnection::ask(const wire::ControlMessage& question,
                                                 Deadline deadline) {
  const Status sent = state_->connection->send(wire::encode(question));
  if (!sent.ok()) state_->give(sent);
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, deadline.remaining(),
                                [&] { return state_->answer.has_value(); })) {
    state_->answer = error(Code::kDeadlineExceeded, "it did not answer in time");
  }
  if (!state_->answer->ok()) return state_->answer->status().prefixed(state_->where);
  return *std::exchange(state_->answer, std::nullopt);
}

Result<wire::ControlMessage> ask_node(net::EventLoop& loop, const net::Address& node,
                                      const net::Token& token, const wire::ControlMessage& question,
                                      Deadline deadline) {
  const auto connection = TROUPE_TRY(NodeConnection::open(loop, node, "node", token, deadline));
  return connection->ask(question, deadline);
}

}  // namespace troupe::scheduler

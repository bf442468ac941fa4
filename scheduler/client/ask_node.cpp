#include "scheduler/client/ask_node.h"

#include <future>
#include <memory>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/net/connection.h"

namespace troupe::scheduler {
namespace {

// The first of answer, damage and end counts. Loop thread.
struct Answer {
  std::promise<Result<wire::ControlMessage>> promise;
  bool given = false;
  void give(Result<wire::ControlMessage> result) {
    if (!std::exchange(given, true)) promise.set_value(std::move(result));
  }
};

}  // namespace

Result<wire::ControlMessage> ask_node(net::EventLoop& loop, const net::Address& node,
                                      const net::Token& token, const wire::ControlMessage& question,
                                      Deadline deadline) {
  TROUPE_CHECK(!loop.in_loop_thread());
  const std::string where = "node at " + node.to_string();
  auto socket = net::connect_blocking(node, "node", token, deadline);
  if (!socket.ok()) return socket.status().prefixed(where);
  auto answer = std::make_shared<Answer>();
  auto answered = answer->promise.get_future();
  const auto connection = net::make_connection(loop, std::move(*socket), where);
  loop.post([connection, answer, frame = wire::encode(question)]() mutable {
    connection->start({.on_frame =
                           [answer](std::span<const std::byte> bytes) {
                             answer->give(wire::decode_control(bytes));
                           },
                       .on_close = [answer](Status why) { answer->give(std::move(why)); }});
    const Status sent = connection->send(std::move(frame));
    if (!sent.ok()) answer->give(sent);
  });
  const bool in_time = answered.wait_for(deadline.remaining()) == std::future_status::ready;
  connection->close();
  if (!in_time) return error(Code::kDeadlineExceeded, "{} did not answer in time", where);
  auto result = answered.get();
  if (!result.ok()) return result.status().prefixed(where);
  return result;
}

}  // namespace troupe::scheduler

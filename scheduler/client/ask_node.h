#pragma once
// Questions to a node itself, on its own port: what it keeps, never through the head.

#include <memory>
#include <string>

#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/wire/control_messages.h"

namespace troupe::scheduler {

// A connection for several questions. Not on the loop's thread.
class NodeConnection {
 public:
  // kUnavailable, kUnauthenticated, kDeadlineExceeded, or what the node says of the target.
  static Result<std::unique_ptr<NodeConnection>> open(net::EventLoop& loop,
                                                      const net::Address& node,
                                                      const std::string& target,
                                                      const net::Token& token, Deadline deadline);
  ~NodeConnection();
  NodeConnection(const NodeConnection&) = delete;
  NodeConnection& operator=(const NodeConnection&) = delete;
  // One at a time; the next message is the answer. After a failure no further one has an answer.
  Result<wire::ControlMessage> ask(const wire::ControlMessage& question, Deadline deadline);

 private:
  struct State;
  explicit NodeConnection(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// Connects, asks (ReadLogs, ReadSegment), and waits for the one answer. Not on the loop's thread.
// kUnavailable, kUnauthenticated, kDeadlineExceeded; what the node says is in the answer's status.
Result<wire::ControlMessage> ask_node(net::EventLoop& loop, const net::Address& node,
                                      const net::Token& token, const wire::ControlMessage& question,
                                      Deadline deadline);

}  // namespace troupe::scheduler

#pragma once
// The node's control connection to its head: one attempt at a time, when it is told to.

#include <functional>
#include <memory>

#include "runtime/net/connection.h"
#include "runtime/net/transport.h"
#include "runtime/wire/control_messages.h"

namespace troupe::scheduler {

// Loop thread only.
class HeadLink {
 public:
  struct Handlers {
    std::function<void()> on_up;
    // The attempt failed, or the connection ended; not after drop().
    std::function<void(Status)> on_down;
    std::function<void(wire::ControlMessage)> on_message;
  };
  HeadLink(net::EventLoop& loop, net::Address address, net::Token token, Handlers handlers);
  ~HeadLink();
  HeadLink(const HeadLink&) = delete;
  HeadLink& operator=(const HeadLink&) = delete;

  void connect();
  void drop();
  // kUnavailable where there is no connection, or it has ended: on_down has come, or comes. Other
  // failures as of net::Connection::send: the message is not sent, and the connection stays.
  Status send(const wire::ControlMessage& message);
  // Sends what is queued, then closes.
  void flush_and_close(std::int64_t flush_ms);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace troupe::scheduler

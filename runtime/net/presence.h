#pragma once
// Whether anybody is at an address at all: a look from outside, without a handshake.

#include <functional>
#include <memory>

#include "runtime/base/clock.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"

namespace troupe::net {

// Connects and stays connected, to nobody's cost but a place in a queue, and calls `on_gone` once
// when a connection is refused: the machine answers, and no process has that port open any more.
// Where nothing answers (a machine or a network that is gone) it says nothing. Until its
// destruction or the deadline. Numeric addresses. Loop thread.
class PresenceProbe {
 public:
  PresenceProbe(EventLoop& loop, const Address& address, Deadline until,
                std::function<void()> on_gone);
  ~PresenceProbe();
  PresenceProbe(const PresenceProbe&) = delete;
  PresenceProbe& operator=(const PresenceProbe&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace troupe::net

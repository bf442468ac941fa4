#pragma once
// Brings what an actor saved on another node to this one, piece by piece, on the loop.

#include <functional>
#include <memory>

#include "runtime/base/ids.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "troupe/unique_fd.h"

namespace troupe::scheduler {

// Loop thread only.
class StateFetcher {
 public:
  // Once. The sealed memory that holds the state, byte for byte; kNotFound: the other node keeps
  // nothing of the actor; otherwise why several attempts in a row brought nothing more of it.
  using Done = std::function<void(Result<UniqueFd>)>;
  // Connects and begins. An attempt that fails is followed by another one, which goes on where it
  // stopped.
  StateFetcher(net::EventLoop& loop, net::Address from, net::Token token, ActorId actor_id,
               Done done);
  ~StateFetcher();  // `done` is not called after it
  StateFetcher(const StateFetcher&) = delete;
  StateFetcher& operator=(const StateFetcher&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace troupe::scheduler

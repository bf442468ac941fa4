#pragma once
// A caller's connection in the actor's process.

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "actors/call_server.h"
#include "actors/session/callee_session.h"
#include "runtime/net/connection.h"

namespace troupe::detail {

class CallServer::Peer final : public CalleeLink {
 public:
  // `unread_bytes_max`: CalleeLink::unread().
  Peer(std::shared_ptr<net::Connection> connection, std::size_t unread_bytes_max)
      : connection_(std::move(connection)), unread_bytes_max_(unread_bytes_max) {}
  // What end() does, on any thread.
  void set_on_end(std::function<void()> on_end) { on_end_ = std::move(on_end); }
  net::Connection& connection() const { return *connection_; }

  Status send(wire::EncodedCall message, bool soon) override {
    if (message.attachment) {
      return connection_->send(std::move(message.frame), std::move(message.attachment));
    }
    return soon ? connection_->send_soon(std::move(message.frame))
                : connection_->send(std::move(message.frame));
  }
  bool unread() const override { return connection_->queued_bytes() > unread_bytes_max_; }
  void end() override { on_end_(); }

  // Loop thread.
  bool bound = false;
  bool stopped = false;  // it has said that it calls no more
  ClientId caller;
  // The server's lock: how many calls came over the socket, and the ring beside it.
  std::uint64_t calls = 0;
  std::uint64_t ring_number = 0;  // of the ring that may be offered; 0: none, or no more
  std::shared_ptr<HostRing> ring;

 private:
  const std::shared_ptr<net::Connection> connection_;
  const std::size_t unread_bytes_max_;
  std::function<void()> on_end_;
};

}  // namespace troupe::detail

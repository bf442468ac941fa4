#pragma once
// A node's connection to the head: registers, beats, comes back when it is lost.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/log.h"
#include "runtime/net/connection.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/wire/control_messages.h"

namespace troupe::scheduler {

struct HeadLinkOptions {
  net::Address head;
  net::Token token;
  // How long the head may be away before the node's first registration, and afterwards.
  Duration join_timeout = std::chrono::seconds(60);
  Duration return_timeout = std::chrono::seconds(60);
};

// Loop thread only.
class HeadLink {
 public:
  struct Handlers {
    // The message to register with, made anew at each connection.
    std::function<wire::RegisterNode()> make_registration;
    std::function<void(const wire::RegisterNodeReply&)> on_registered;
    std::function<void(wire::ControlMessage)> on_message;
    // The head has not been heard of for so long that it has given the node's actors away: they
    // must end. The link goes on trying.
    std::function<void()> on_fenced;
    // The link has given up: refused, or the head is away for too long. Last.
    std::function<void(Status)> on_end;
  };

  HeadLink(net::EventLoop& loop, HeadLinkOptions options, Logger log, Handlers handlers);
  ~HeadLink();

  void start();
  // Lost while there is no connection: what is true then is part of the next registration.
  void send(const wire::ControlMessage& message);
  // Sends what is queued, then closes for good.
  void close();
  bool registered() const { return registered_; }

 private:
  void connect_now();
  void connected(UniqueFd socket);
  void received(std::span<const std::byte> frame);
  void registered(const wire::RegisterNodeReply& reply);
  void lost(const Status& why);
  void try_later(const Status& why);
  void end(Status why);
  void beat();
  void after(Duration delay, std::function<void()> work);

  net::EventLoop& loop_;
  const HeadLinkOptions options_;
  Logger log_;
  Handlers handlers_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::shared_ptr<net::Connection> connection_;
  bool registered_ = false;
  bool ever_registered_ = false;
  bool ended_ = false;
  NodeId node_id_;
  std::uint64_t request_ = 0;
  std::uint64_t beats_ = 0;
  Duration heartbeat_interval_{0};
  Duration heartbeat_timeout_ = std::chrono::seconds(3);
  Duration pause_{0};
  TimePoint away_since_;
  TimePoint last_heard_;
  bool fenced_ = false;
  bool told_waiting_ = false;
};

}  // namespace troupe::scheduler

#pragma once
// A head that does nothing by itself: it answers registrations and heartbeats, sends what it is
// told to, and remembers what nodes say.

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/net/connection.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/wire/control_messages.h"
#include "tests/support/on_loop.h"
#include "troupe/detail/mutex.h"

namespace troupe::scheduler::tests {

class FakeHead {
 public:
  struct Options {
    std::uint16_t port = 0;
    std::int64_t heartbeat_interval_ms = 0;
    std::int64_t heartbeat_timeout_ms = 0;
    Status refusal;
  };
  FakeHead(net::Token token, Options options);
  ~FakeHead();

  std::uint16_t port() const { return port_; }
  void send(wire::ControlMessage message);
  void fall_silent() { answers_ = false; }
  // The next message of this type that the node says; nothing within 20 s.
  template <typename Message>
  std::optional<Message> next() {
    std::optional<Message> found;
    MutexLock lock(mutex_);
    changed_.wait_until(mutex_, Deadline::after(std::chrono::seconds(20)),
                        [&]() TROUPE_NO_ANALYSIS {
                          for (auto it = said_.begin(); it != said_.end(); ++it) {
                            if (auto* message = get_if<Message>(&*it)) {
                              found = std::move(*message);
                              said_.erase(it);
                              return true;
                            }
                          }
                          return false;
                        });
    return found;
  }

 private:
  void accept(net::AcceptedSocket accepted);
  void received(wire::ControlMessage message);

  const net::Token token_;
  const Options options_;
  SystemRandom random_;
  std::uint16_t port_ = 0;
  std::atomic<bool> answers_ = true;
  Mutex mutex_;
  CondVar changed_;
  std::deque<wire::ControlMessage> said_ TROUPE_GUARDED_BY(mutex_);
  net::LoopThread thread_{"fake-head"};
  std::unique_ptr<net::Listener> listener_;  // loop thread, as the next
  std::shared_ptr<net::Connection> connection_;
};

using troupe::tests::on_loop;

}  // namespace troupe::scheduler::tests

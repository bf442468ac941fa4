#pragma once
// A node's object store of which the test decides what it answers, and when; and a process's side
// that talks to it.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "actors/objects/object_client.h"
#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/wire/object_messages.h"

namespace troupe::tests {

class FakeStore {
 public:
  FakeStore();
  ~FakeStore();

  const std::shared_ptr<detail::ObjectClient>& client() const { return client_; }
  NodeId node_id() const { return node_id_; }
  // What the store is asked for is not answered yet, unless this is false: then memory is granted
  // at once, and every object is lost.
  void set_pending(bool pending);
  // The daemon ends, and another one comes: with the next connection, and segments from 1 on.
  void end_connection();
  // Grants memory, by a notice, to a request that waits.
  void grant(const wire::NewSegment& asked);

  // The next message of this kind that the process has sent; nothing within some seconds.
  template <typename Message>
  std::optional<Message> next() {
    std::unique_lock lock(mutex_);
    std::optional<Message> found;
    changed_.wait_for(lock, std::chrono::seconds(10), [&] {
      while (!found && !messages_.empty()) {
        if (auto* const message = get_if<Message>(&messages_.front())) found = std::move(*message);
        messages_.pop_front();
      }
      return found.has_value();
    });
    return found;
  }

 private:
  void on_loop(const std::function<void()>& work);
  void accept(net::AcceptedSocket socket);
  void read();
  void answer(const wire::ObjectMessage& message);
  void send_segment(std::uint64_t request, std::uint64_t bytes, int socket);

  SeededRandom random_{7};
  const net::Token token_{32, std::byte{3}};
  const NodeId node_id_ = NodeId::make(random_);
  net::LoopThread thread_{"fake store"};
  std::shared_ptr<detail::ObjectClient> client_;
  // The loop's thread's.
  std::unique_ptr<net::Listener> listener_;
  UniqueFd requests_, notices_;
  std::uint64_t next_segment_ = 1;
  bool pending_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<wire::ObjectMessage> messages_;
};

}  // namespace troupe::tests

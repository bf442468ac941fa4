#pragma once
// One connection of an ActorChannel to a process of its actor: a socket, and beside it, where both
// are on one node and many calls are made, a ring in shared memory (call_ring.h).
//
// Every call can go over the socket. Once a caller on the actor's node has had kRingAfterCalls
// answers it offers a ring. Then the calling thread writes calls into it, and the thread that waits
// in Future::get() reads the answers; neither needs the loop's thread. Answers for which nobody
// waits in that way are read on the loop's thread, which the actor's process wakes by an eventfd;
// continuations always run there (or on the future's executor). Deaths and cancellation stay with
// the socket.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "actors/caller_ring.h"
#include "actors/session/call_link.h"
#include "runtime/net/connection.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "troupe/detail/mutex.h"

namespace troupe::detail {

class ActorChannel;
struct ChannelEnvironment;

class ChannelLink final : public CallLink, public std::enable_shared_from_this<ChannelLink> {
 public:
  // `address`: of the actor's node, for the ring's own connection. `attempt`: CallerOutcome's.
  ChannelLink(std::weak_ptr<ActorChannel> channel,
              std::shared_ptr<const ChannelEnvironment> environment, std::uint64_t attempt,
              net::Address address, ByteStream socket, const std::string& peer);
  // Begins to read. Once; loop thread.
  void start();
  std::uint64_t attempt() const { return attempt_; }

  // --- CallLink

  SendOutcome send_call(std::uint64_t sequence, CallRequest& request,
                        std::size_t pending_calls) override;
  Status send(const wire::CallMessage& message) override;
  void end(const Status& why) override;
  void close() override;

  // --- answers

  // One more answer has come over the socket: after some a ring is offered. Loop thread.
  void count_answer(std::size_t bytes);
  // `channel`: the one that the link belongs to.
  // For a thread that waits for an answer: sends what has been collected for one write, and reads
  // answers from the ring until `ended()` or the deadline. Returns early where there is no ring, or
  // another thread reads already.
  void read_answers(ActorChannel& channel, Deadline deadline, const std::function<bool()>& ended);
  // Reads the answers that are in the ring.
  void read_ring(ActorChannel& channel);
  // Wakes a thread that waits in read_answers(): its call may have ended otherwise.
  void nudge();
  bool has_ring() const { return ring() != nullptr; }
  // Shared memory for arguments of `bytes` bytes; nothing where there is no ring, or no room.
  std::optional<SlabLease> take_slab(std::size_t bytes);

 private:
  class RingSlot;  // one of the process's rings
  struct Offer;
  CallerRing* ring() const { return ring_.load(std::memory_order_acquire); }
  net::EventLoop& loop() const;
  SendOutcome send_by_socket(std::uint64_t sequence, CallRequest& request,
                             std::size_t pending_calls);
  std::optional<SendOutcome> send_by_ring(std::uint64_t sequence, CallRequest& request,
                                          std::size_t pending_calls);
  void offer_ring();
  void on_ring_socket(std::shared_ptr<RingSlot> slot, Result<ByteStream> socket);
  void on_ring_reply(const std::shared_ptr<Offer>& offer);
  void on_wake_up();
  void look_later();
  bool read_ring(ActorChannel& channel, int count_max);
  void on_ring_answer(ActorChannel& channel, const CallerRing::Answer& answer);
  void run_continuations();

  const std::weak_ptr<ActorChannel> channel_;
  const std::shared_ptr<const ChannelEnvironment> environment_;
  const std::uint64_t attempt_;
  const net::Address address_;
  const std::shared_ptr<net::Connection> connection_;
  std::uint64_t socket_calls_ = 0;  // sent over the socket; the channel's lock
  std::uint64_t answered_ = 0;      // loop thread, as the next
  bool ring_offered_ = false;
  // Set once. The first owns what the second points to.
  std::shared_ptr<CallerRing> ring_owner_;
  std::atomic<CallerRing*> ring_{nullptr};
  std::shared_ptr<RingSlot> slot_;  // loop thread
  Mutex continuations_mutex_;
  // For the loop's thread, in the order of the answers.
  Continuations continuations_ TROUPE_GUARDED_BY(continuations_mutex_);
};

}  // namespace troupe::detail

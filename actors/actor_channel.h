#pragma once
// The calls from one process to one actor: the conversation's state machine
// (session/caller_session.h, which says how calls end) with what it needs of the machine: a lock,
// timers, the directory's watch of the actor, and connections (channel_link.h).
//
// In a forked child of the process that made the channel its calls end with kFailedPrecondition,
// and nothing else does anything: rings and sockets are the parent's.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "actors/call_connection.h"
#include "actors/call_ring.h"
#include "actors/channel_link.h"
#include "actors/directory.h"
#include "actors/session/caller_session.h"
#include "runtime/base/clock.h"
#include "runtime/base/process_stamp.h"
#include "runtime/net/connection.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "troupe/detail/mutex.h"

namespace troupe::detail {

// What the channels of one process share.
struct ChannelEnvironment {
  net::EventLoop* loop = nullptr;  // outlives the channels
  net::Token token;
  NodeId node_id;  // of this process; empty: on no node
  // A process on no node may be on an actor's machine all the same: then calls go by the node's
  // local socket where somebody listens there.
  bool tries_local = false;
  std::shared_ptr<Directory> directory;
  // Which actor's process this is, and what ends it when another actor says that a later process of
  // the same actor has called already (on the loop's thread). A driver has neither.
  ActorId self;
  std::uint64_t self_generation = 0;
  std::function<void(const Status& why)> on_superseded;
  // Rings: how long their waits may spin (zero: never), and how many there may be (zero: none).
  Duration spin_max = kRingSpin;
  int rings_max = kRingsMax;
  std::shared_ptr<std::atomic<int>> rings = std::make_shared<std::atomic<int>>(0);
  // The connections to actors.
  net::ConnectionOptions connections = call_connection_options();
  ProcessStamp process;  // whose channels they are

  // Where a process on `node` is reached: by the node's local socket from the same node.
  net::Address address_of(const NodeId& node, const wire::Endpoint& endpoint) const;
};

// Thread-safe.
class ActorChannel : public std::enable_shared_from_this<ActorChannel> {
 public:
  // `caller`: this channel's own id, unique in the cluster.
  ActorChannel(std::shared_ptr<const ChannelEnvironment> environment, ActorId actor_id,
               ActorInterface interface, ClientId caller);
  ~ActorChannel();

  // The number of the call, for cancel(); 0 when it has ended already.
  std::uint64_t call(CallRequest request);
  // Forgets the call and asks the actor not to begin it, or to stop it. The sink is abandoned.
  void cancel(std::uint64_t sequence);
  // Says that a method waits for the call `probe.sequence`. Nothing where it has not been sent.
  void send_probe(wire::CallProbe probe);
  // The actor need not keep the objects any more that the call's result, or an item of its stream,
  // refers to.
  void references_taken(std::uint64_t sequence, std::uint64_t item);
  // A stream may send so many items in all.
  void allow_items(std::uint64_t sequence, std::uint64_t items);
  // For a thread that waits for an answer: reads answers until `ended()` or the deadline, where it
  // can (ChannelLink::read_answers).
  void read_answers(Deadline deadline, const std::function<bool()>& ended);
  // CallerSession::late.
  std::optional<Status> late(std::uint64_t sequence, const char* what) const;
  // CallerSession::placed.
  Status placed(std::uint64_t sequence, Status why) const;
  // Shared memory for arguments of `bytes` bytes, to be given to call(); nothing where there is no
  // ring or no room.
  std::optional<SlabLease> take_slab(std::size_t bytes);
  // CallerSession::fail, fail_waiting, close.
  void fail(const Status& why);
  void fail_waiting(const Status& why);
  void close(const Status& why);

  ActorId actor_id() const { return config_.actor_id; }
  ClientId caller() const { return config_.caller; }
  const ActorInterface& interface() const { return config_.interface; }
  // True when every later call is known to fail: the actor is dead.
  bool ended() const;
  // … and that its connection is closed: nothing is left of it but what it says.
  bool over() const;
  // Whether a call was ever made.
  bool used() const;
  // Whether this process is a fork of the one whose channel it is.
  bool forked() const { return environment_->process.is_forked(); }
  // Whether calls go through shared memory now.
  bool has_ring() const;

  // --- for ChannelLink

  // Loop thread.
  void on_frame(ChannelLink& link, std::span<const std::byte> frame, net::Attachment&& attachment);
  void on_writable(const ChannelLink& link);
  void on_ended(ChannelLink& link, const Status& why);
  // Any thread. Continuations of users' code go to `later`.
  void on_ring_result(std::uint64_t sequence, std::span<const std::byte> result,
                      Continuations& later);
  void on_ring_error(std::uint64_t sequence, Status why, Continuations& later);
  // Does `what` under the lock where `link` is the one that calls go over; whether it did.
  template <typename What>
  bool while_open(const ChannelLink& link, What what) {
    MutexLock lock(mutex_);
    if (session_.link().get() != &link || !session_.open() || !session_.ended().ok()) return false;
    what();
    return true;
  }

 private:
  // Lets the session take an event, and carries out what comes of it.
  template <typename Event>
  void apply(Event event);
  // All of it but the calls that have ended.
  void carry_out(CallerOutcome out);
  void answer(std::vector<EndedCall> ended) const;
  void find();
  void connect(const CallerOutcome::Connect& to);
  // … at `address`; where that fails, at `otherwise`.
  void connect_by(const CallerOutcome::Connect& to, const net::Address& address,
                  std::optional<net::Address> otherwise = std::nullopt);
  void on_connected(const CallerOutcome::Connect& to, const net::Address& address,
                    Result<ByteStream> socket);
  void on_timer();
  void arm_locked() TROUPE_REQUIRES(mutex_);
  void disarm_locked() TROUPE_REQUIRES(mutex_);
  std::shared_ptr<ChannelLink> link() const;

  const std::shared_ptr<const ChannelEnvironment> environment_;
  const CallerSession::Config config_;
  mutable Mutex mutex_;
  CallerSession session_ TROUPE_GUARDED_BY(mutex_);
  // Of the event under way, empty between events: to make one for each would cost a call more than
  // its lock does, and most leave nothing to do.
  CallerOutcome outcome_ TROUPE_GUARDED_BY(mutex_);
  std::optional<TimePoint> armed_ TROUPE_GUARDED_BY(mutex_);
  net::TimerId timer_ TROUPE_GUARDED_BY(mutex_) = 0;  // where it is armed
  Directory::WatchId watch_ TROUPE_GUARDED_BY(mutex_) = 0;
};

}  // namespace troupe::detail

#pragma once
// The road from one process to one actor: numbers the calls, finds the actor, sends in order,
// matches answers, and goes on to the actor's next process when one dies.
//
// Every call ends in exactly one answer: the actor's result or error, or
//   kDeadlineExceeded  its deadline passed (says what it was waiting for)
//   kActorDied         the actor is dead for good; the message has the cause
//   kUnavailable       the call was sent and its process died or the connection broke, so it may or
//                      may not have run; CallOptions::retry sends it again instead
//   kOverloaded        the actor's mailbox or the connection's queue is full
//   kDataLoss          once: the actor goes on without the state that it had saved (state_loss.h);
//                      this call was not sent
// Calls that were not sent yet wait for the actor's (next) process until their deadline; so do
// those that a process gives back which ends in an orderly way, on a node that is drained. Where
// the head has been away for long they end with kUnavailable; later ones wait anew, and those to a
// process that is connected go on without the head. Only the actor's death, and close(), end the
// channel for good.
//
// In a forked child of the process that made the channel its calls end with kFailedPrecondition,
// and nothing else does anything: rings and sockets are the parent's.
//
// An actor may have two processes for a while (OnHeadLoss::kKeep). The channel goes to newer
// generations only: it leaves a process whose successor the head tells of, and says when it binds
// which generation it knows, so that an older process refuses, and ends.
//
// Two roads. Every call can go over the connection's socket. A caller on the actor's node that
// calls more than a few times makes a fast road besides (call_road.h): calls and answers then pass
// through shared memory, without the loop's thread: the calling thread writes, the thread that
// waits in Future::get() reads the answers. Answers for which nobody waits in that way are read on
// the loop's thread, which the actor's process wakes by the road's bell; continuations always run
// there (or on the future's executor). Deaths, deadlines and cancellation stay with the socket.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/call_connection.h"
#include "actors/call_road.h"
#include "actors/call_sink.h"
#include "actors/caller_road.h"
#include "actors/directory.h"
#include "actors/method_table.h"
#include "actors/running_call.h"
#include "actors/state_loss.h"
#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/process_stamp.h"
#include "runtime/net/connection.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/wire/call_messages.h"

namespace troupe::detail {

// What the channels of one process share.
struct ChannelEnvironment {
  net::EventLoop* loop = nullptr;  // outlives the channels
  net::Token token;
  NodeId node_id;  // of this process; empty: on no node
  std::shared_ptr<Directory> directory;
  // Which actor's process this is, and what ends it when another actor says that a later process of
  // the same actor has called already (on the loop's thread). A driver has neither.
  ActorId self;
  std::uint64_t self_generation = 0;
  std::function<void(const Status& why)> on_superseded;
  // Fast roads: how long their waits may spin (zero: never), and how many there may be (zero:
  // none).
  Duration spin_max = kRoadSpin;
  int roads_max = kRoadsMax;
  std::shared_ptr<std::atomic<int>> roads = std::make_shared<std::atomic<int>>(0);
  // The connections to actors.
  net::ConnectionOptions connections = call_connection_options();
  ProcessStamp process;  // whose channels they are
};

struct CallRequest {
  std::uint32_t method = 0;
  wire::Bytes arguments;
  Deadline deadline;
  bool retry = false;
  bool despite_state_loss = false;  // state_loss.h
  // Answered once, on any thread. Users' code runs on the loop's thread only, or on the caller's
  // during call().
  CallSinkRef sink;
  // The arguments instead, where they are large and the fast road has room for them.
  SlabLease slab;
  // The arguments instead, once they went beside a message: shared with the connection.
  net::SharedBytes attached = {};
  // The call inside which this one was made, where its deadline is that one's.
  MethodLabel deadline_of = {};
  // Of a stream: how many items may come in all. 0: it is none.
  std::uint64_t stream_items = 0;
  // When the call was made; nothing where that is not known.
  TimePoint made{};
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
  // A stream may send so many items in all.
  void allow_items(std::uint64_t sequence, std::uint64_t items);
  // For a thread that waits for an answer: sends calls that wait for company, and reads answers
  // from the fast road until `ended()` or the deadline. Returns early where there is no such road,
  // or another thread reads already.
  void read_answers(Deadline deadline, const std::function<bool()>& ended);
  // Why the call has not ended yet: an error of a wait that is `what` ("no result before …") with
  // the actor, the method, the node, and in what state they are. Nothing where it has ended.
  std::optional<Status> late(std::uint64_t sequence, const char* what) const;
  // Shared memory for arguments of `bytes` bytes, to be given to call(); nothing where there is no
  // fast road or no room.
  std::optional<SlabLease> take_slab(std::size_t bytes);
  // Ends the channel: all calls, now and later, end with `why`.
  void fail(Status why);
  // Ends the calls that wait for the actor to be found; later ones wait anew.
  void fail_waiting(const Status& why);
  // Drops the connection and ends all calls.
  void close(Status why);

  ActorId actor_id() const { return actor_id_; }
  const ActorInterface& interface() const { return interface_; }
  // True when every later call is known to fail: the actor is dead.
  bool ended() const;
  // … and that its connection is closed: nothing is left of it but what it says.
  bool over() const;
  // Whether a call was ever made.
  bool used() const;
  // Whether this process is a fork of the one whose channel it is.
  bool forked() const { return environment_->process.is_forked(); }
  // Whether calls go through shared memory now.
  bool has_fast_road() const;

 private:
  // kDraining: open, for the answers to what was sent; the rest is for the actor's next process.
  // kLeaving: the process at the other end has a successor. Nothing more is sent to it; what it has
  // answered already is still read, until the connection ends or a short time is over.
  enum class Road { kNone, kWaiting, kConnecting, kBinding, kOpen, kDraining, kLeaving };
  enum class SendState { kUnsent, kSent, kLost };  // kLost: sent, and the connection broke
  struct PendingCall {
    CallRequest request;
    SendState state = SendState::kUnsent;
    bool sent_before = false;  // and not given back: it may have run
  };
  using Calls = std::unordered_map<std::uint64_t, PendingCall>;
  // Ended calls and their answers, delivered after the lock is released.
  struct Answers {
    std::vector<std::pair<CallRequest, Result<wire::Bytes>>> items;
  };

  void start_watch();
  void on_actor(const Result<wire::ActorInfo>& info);
  void on_death_locked(const Status& death, Answers& answers) TROUPE_REQUIRES(mutex_);
  void lose_sent_locked() TROUPE_REQUIRES(mutex_);
  void connect_locked() TROUPE_REQUIRES(mutex_);
  void on_connected(std::uint64_t attempt, Result<ByteStream> socket);
  void retry_later_locked() TROUPE_REQUIRES(mutex_);
  std::uint64_t newest_generation_locked() const TROUPE_REQUIRES(mutex_);
  std::shared_ptr<net::Connection> leave_older_locked() TROUPE_REQUIRES(mutex_);
  void stop_leaving(std::uint64_t attempt);
  void on_frame(std::uint64_t attempt, std::span<const std::byte> frame,
                net::Attachment&& attachment);
  void on_drained(std::uint64_t attempt);
  void send_in_order_locked(const std::vector<std::uint64_t>& sequences, Answers& answers)
      TROUPE_REQUIRES(mutex_);
  Status send_call_locked(std::uint64_t sequence, PendingCall& call) TROUPE_REQUIRES(mutex_);
  void on_bound(std::uint64_t attempt, const wire::BindReply& reply);
  void open_locked(std::uint64_t generation, Answers& answers) TROUPE_REQUIRES(mutex_);
  void on_draining(std::uint64_t attempt);
  void on_given_back(wire::CallGivenBack back);
  void on_reply(wire::CallReply reply);
  void on_item(const wire::StreamItem& item);
  void on_refused(const wire::CallMessage& message, std::uint64_t bytes);
  void on_close(std::uint64_t attempt, const Status& why);
  // The fast road. Answers read before somebody else has a turn; more than a ring holds.
  static constexpr int kAnswersPerTurn = 256;
  static constexpr int kAllAnswers = 1 << 20;
  struct RoadSlot;  // one of the process's roads
  struct RoadOffering;
  void count_answer_locked() TROUPE_REQUIRES(mutex_);
  void offer_road_locked() TROUPE_REQUIRES(mutex_);
  void on_road_socket(std::uint64_t attempt, std::shared_ptr<RoadSlot> slot,
                      Result<ByteStream> socket);
  void on_road_reply(std::uint64_t attempt, const std::shared_ptr<RoadOffering>& offering);
  void on_bell(const std::shared_ptr<CallerRoad>& road);
  void look_later(const std::shared_ptr<CallerRoad>& road);
  bool drain(CallerRoad& road, int count_max);
  void on_road_answer(const CallerRoad::Answer& answer);
  void run_later();
  void drop_road(std::shared_ptr<CallerRoad> road, std::shared_ptr<RoadSlot> slot);
  bool send_by_road_locked(std::uint64_t sequence, PendingCall& call, Answers& answers)
      TROUPE_REQUIRES(mutex_);
  void forget_locked(Calls::iterator call) TROUPE_REQUIRES(mutex_);
  net::Address address_locked() const TROUPE_REQUIRES(mutex_);

  void send_stream_locked(std::uint64_t sequence, PendingCall& call, Answers& answers)
      TROUPE_REQUIRES(mutex_);
  void send_locked(std::uint64_t sequence, PendingCall& call, Answers& answers)
      TROUPE_REQUIRES(mutex_);
  void tell_locked(const wire::CallMessage& message) TROUPE_REQUIRES(mutex_);
  // The calls' numbers, in order.
  std::vector<std::uint64_t> sequences_locked() const TROUPE_REQUIRES(mutex_);
  void add_deadline_locked(TimePoint time, std::uint64_t sequence) TROUPE_REQUIRES(mutex_);
  void arm_locked(TimePoint time) TROUPE_REQUIRES(mutex_);
  void disarm_locked() TROUPE_REQUIRES(mutex_);
  void on_timer();
  void end_call_locked(Calls::iterator call, Result<wire::Bytes> result, Answers& answers)
      TROUPE_REQUIRES(mutex_);
  void end_lost_locked(const Status& why, Answers& answers) TROUPE_REQUIRES(mutex_);
  void end_waiting_locked(const Status& why, Answers& answers) TROUPE_REQUIRES(mutex_);
  void end_all_locked(const Status& why, Answers& answers) TROUPE_REQUIRES(mutex_);
  // actor_channel_late.cpp
  Status deadline_error_locked(const PendingCall& call) const TROUPE_REQUIRES(mutex_);
  std::string waits_for_locked(const PendingCall& call) const TROUPE_REQUIRES(mutex_);
  void add_place_locked(Status& status, std::uint32_t method) const TROUPE_REQUIRES(mutex_);
  std::string label_locked() const TROUPE_REQUIRES(mutex_);
  void deliver(Answers answers) const;

  const std::shared_ptr<const ChannelEnvironment> environment_;
  const ActorId actor_id_;
  const ActorInterface interface_;
  const ClientId caller_;

  mutable Mutex mutex_;
  Road road_ TROUPE_GUARDED_BY(mutex_) = Road::kNone;
  Status ended_ TROUPE_GUARDED_BY(mutex_);  // not ok: every call ends with it
  std::uint64_t next_sequence_ TROUPE_GUARDED_BY(mutex_) = 1;
  Calls calls_ TROUPE_GUARDED_BY(mutex_);
  // A heap, the earliest first, of the calls' deadlines; calls that have ended stay in it until it
  // is twice as large as it need be.
  std::vector<std::pair<TimePoint, std::uint64_t>> deadlines_ TROUPE_GUARDED_BY(mutex_);
  std::optional<TimePoint> armed_ TROUPE_GUARDED_BY(mutex_);
  net::TimerId timer_ TROUPE_GUARDED_BY(mutex_) = 0;  // where it is armed
  std::optional<wire::ActorInfo> info_ TROUPE_GUARDED_BY(mutex_);
  StateLoss state_loss_ TROUPE_GUARDED_BY(mutex_);
  // Bound to a process of which the head has not told yet: calls wait for what it says.
  std::optional<std::uint64_t> bound_early_ TROUPE_GUARDED_BY(mutex_);
  // For errors: since when it is in that state, why the last attempt to connect failed, and since
  // when the connection is open.
  TimePoint info_since_ TROUPE_GUARDED_BY(mutex_);
  Status connect_trouble_ TROUPE_GUARDED_BY(mutex_);
  TimePoint opened_at_ TROUPE_GUARDED_BY(mutex_);
  NodeId connected_node_ TROUPE_GUARDED_BY(mutex_);  // of the last attempt to connect
  std::shared_ptr<net::Connection> connection_ TROUPE_GUARDED_BY(mutex_);
  // Callbacks of earlier attempts to connect are ignored.
  std::uint64_t attempt_ TROUPE_GUARDED_BY(mutex_) = 0;
  Duration backoff_ TROUPE_GUARDED_BY(mutex_){};
  Directory::WatchId watch_ TROUPE_GUARDED_BY(mutex_) = 0;

  // Of the connection that is open: what went over it, and the fast road beside it.
  std::uint64_t socket_calls_ TROUPE_GUARDED_BY(mutex_) = 0;
  // Calls, in order, that wait until less waits to be sent.
  std::vector<std::uint64_t> held_ TROUPE_GUARDED_BY(mutex_);
  std::uint64_t answered_ TROUPE_GUARDED_BY(mutex_) = 0;
  bool road_offered_ TROUPE_GUARDED_BY(mutex_) = false;
  std::shared_ptr<CallerRoad> fast_road_ TROUPE_GUARDED_BY(mutex_);
  std::shared_ptr<RoadSlot> road_slot_ TROUPE_GUARDED_BY(mutex_);
  // Large arguments of calls that have ended here, until the actor has answered them too.
  std::map<std::uint64_t, SlabLease> lent_slabs_ TROUPE_GUARDED_BY(mutex_);
  Mutex later_mutex_;
  // Continuations for the loop's thread, in the order of the answers.
  Continuations later_ TROUPE_GUARDED_BY(later_mutex_);
};

}  // namespace troupe::detail

#pragma once
// The caller's half of the conversation between one process and one actor, as a pure state machine:
// numbers the calls, says when the actor is to be looked for and connected to, sends in order,
// matches answers, and goes on with the actor's next process when one dies. It knows no socket,
// thread, lock or clock: ActorChannel drives it in programs, tests/simulation in virtual time.
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
// session for good.
//
// An actor may have two processes for a while (OnHeadLoss::kKeep). The session goes to newer
// generations only: it leaves a process whose successor the head tells of, and says when it binds
// which generation it knows, so that an older process refuses, and ends.
//
// A call keeps its number when it is sent again. Numbers grow in the order of the calls, and calls
// are sent in the order of their numbers, so the actor's half (callee_session.h) knows by the
// number alone whether it has had a call.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/session/call_link.h"
#include "actors/session/call_request.h"
#include "actors/session/state_loss.h"
#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/wire/call_messages.h"
#include "runtime/wire/types.h"

namespace troupe::detail {

// What the owner has to do after an event, in this order, without holding a lock.
struct CallerOutcome {
  // Ask where the actor is, from now on: CallerSession::on_actor. At most once in a session's life.
  bool find = false;
  // Stop asking.
  bool stop_finding = false;
  // Connect to the actor's process, for CallerSession::on_connected.
  struct Connect {
    std::uint64_t attempt = 0;
    NodeId node_id;
    wire::Endpoint endpoint;
  };
  std::optional<Connect> connect = std::nullopt;
  // Not ok: another process of the actor that this process is has taken its place.
  Status superseded = {};
  std::vector<std::shared_ptr<CallLink>> closed;  // to be closed
  // An item of a stream, for its sink.
  std::shared_ptr<CallSink> item_sink = nullptr;
  wire::StreamItem item = {};
  std::vector<EndedCall> ended;  // to be answered

  // Most events leave nothing to do.
  bool empty() const {
    return !find && !stop_finding && !connect && superseded.ok() && closed.empty() && !item_sink &&
           ended.empty();
  }
};

// Not thread-safe. `now` never goes back from one event to the next.
class CallerSession {
 public:
  struct Config {
    ActorId actor_id;
    ActorInterface interface;
    ClientId caller;  // this session's own id, unique in the cluster
    // Which actor's process this is; empty: a driver.
    ActorId self;
    std::uint64_t self_generation = 0;
  };
  explicit CallerSession(Config config);

  // --- calls

  // The number of the call; 0 when it has ended already.
  std::uint64_t call(CallRequest&& request, CallerOutcome& out);
  // Forgets the call and asks the actor not to begin it, or to stop it. What is returned was its
  // request; its sink is abandoned where that is destroyed. Nothing where it had ended.
  std::optional<CallRequest> cancel(std::uint64_t sequence);
  // Says that a method waits for the call `probe.sequence`. Nothing where it has not been sent.
  void send_probe(wire::CallProbe probe);
  // A stream may send so many items in all.
  void allow_items(std::uint64_t sequence, std::uint64_t items);

  // --- the actor, as the head tells of it

  void on_actor(const Result<wire::ActorInfo>& info, TimePoint now, CallerOutcome& out);

  // --- the link. Events of an attempt that is over are ignored

  // The attempt has led to a link, or to why not. False: the link is not wanted any more.
  [[nodiscard]] bool on_connected(std::uint64_t attempt, Result<std::shared_ptr<CallLink>> link,
                                  TimePoint now, CallerOutcome& out);
  // `too_large`: what came beside it was more than this process takes, and was thrown away.
  void on_message(std::uint64_t attempt, wire::CallMessage message,
                  const std::optional<TooLarge>& too_large, TimePoint now, CallerOutcome& out);
  // The same of an answer, which needs no clock: answers are most of what arrives.
  void on_reply(std::uint64_t attempt, wire::CallReply reply, CallerOutcome& out);
  // Answers that came by the link's shared memory. The request; nothing where the call has ended.
  std::optional<CallRequest> on_result(std::uint64_t sequence);
  void on_error(std::uint64_t sequence, Status why, CallerOutcome& out);
  // The link takes calls again.
  void on_writable(std::uint64_t attempt, CallerOutcome& out);
  // The link has ended: nothing more comes of it.
  void on_ended(std::uint64_t attempt, const Status& why, TimePoint now, CallerOutcome& out);
  // What the link carries cannot be understood: another connection would say the same.
  void on_nonsense(Status why, CallerOutcome& out);

  // --- time

  // When on_time() is to be called; nothing: not before something else happens.
  std::optional<TimePoint> next_time() const {
    TimePoint next = deadlines_.empty() ? kNever : deadlines_.front().first;
    next = std::min(next, std::min(retry_at_, leave_at_));
    next = std::min(next, std::min(verdict_at_, close_at_));
    return next == kNever ? std::nullopt : std::optional(next);
  }
  void on_time(TimePoint now, CallerOutcome& out);

  // --- the end

  // Ends all calls, now and later, with `why`. The link stays for what the actor says of it.
  void fail(const Status& why, CallerOutcome& out);
  // Ends the calls that wait for the actor to be found; later ones wait anew.
  void fail_waiting(const Status& why, CallerOutcome& out);
  // Ends the link and all calls.
  void close(const Status& why, CallerOutcome& out);

  // --- what it knows

  const Config& config() const { return config_; }
  const std::shared_ptr<CallLink>& link() const { return link_; }
  bool open() const { return phase_ == Phase::kOpen; }
  // Not ok: every later call ends with it.
  const Status& ended() const { return ended_; }
  // Whether a call was ever made.
  bool used() const { return next_sequence_ > 1; }
  std::size_t pending_calls() const { return calls_.size(); }
  // Why the call has not ended yet: an error of a wait that is `what` ("no result before …") with
  // the actor, the method, the node, and in what state they are. Nothing where it has ended.
  std::optional<Status> late(std::uint64_t sequence, const char* what, TimePoint now) const;
  // An error of a pending call, with its actor, method and node; of another as it is.
  Status placed(std::uint64_t sequence, Status why) const;

 private:
  // kDraining: open, for the answers to what was sent; the rest is for the actor's next process.
  // kLeaving: the process at the other end has a successor. Nothing more is sent to it; what it has
  // answered already is still read, until the connection ends or a short time is over.
  enum class Phase : std::uint8_t {
    kUnused,
    kWaiting,
    kConnecting,
    kBinding,
    kOpen,
    kDraining,
    kLeaving
  };
  enum class State : std::uint8_t { kUnsent, kSent, kLost };  // kLost: sent, and the link broke
  struct PendingCall {
    explicit PendingCall(CallRequest&& r) : request(std::move(r)) {}
    CallRequest request;
    State state = State::kUnsent;
    bool sent_before = false;  // and not given back: it may have run
  };
  using Calls = std::unordered_map<std::uint64_t, PendingCall>;

  void on_state(const wire::ActorInfo& info, TimePoint now, CallerOutcome& out);
  void on_death(const Status& death, TimePoint now, CallerOutcome& out);
  void leave_older(TimePoint now, CallerOutcome& out);
  void connect(CallerOutcome& out);
  void retry_later(TimePoint now);
  void drop_link(CallerOutcome& out);
  std::uint64_t newest_generation() const;

  void on_bound(const wire::BindReply& reply, TimePoint now, CallerOutcome& out);
  void open(std::uint64_t generation, TimePoint now, CallerOutcome& out);
  void on_draining();
  void on_given_back(wire::CallGivenBack back);
  void end_answered(wire::CallReply reply, CallerOutcome& out);
  void on_item(wire::StreamItem item, CallerOutcome& out);
  void on_too_large(const wire::CallMessage& message, const TooLarge& too_large,
                    CallerOutcome& out);

  void send(std::uint64_t sequence, PendingCall& call, CallerOutcome& out);
  void send_in_order(const std::vector<std::uint64_t>& sequences, CallerOutcome& out);
  void tell(const wire::CallMessage& message);
  void lose_sent(TimePoint now);

  void add_deadline(TimePoint time, std::uint64_t sequence);
  void end_expired(TimePoint now, CallerOutcome& out);
  void forget(std::uint64_t sequence, PendingCall& call);
  void end_call(Calls::iterator call, Result<wire::Bytes> result, CallerOutcome& out);
  template <typename Which>
  void end_calls(const Status& why, CallerOutcome& out, Which which);
  // Those that were sent, and whose process or connection is lost: `what` says how.
  void end_lost(const std::string& what, CallerOutcome& out);
  void end_waiting(const Status& why, CallerOutcome& out);
  void end_all(const Status& why, CallerOutcome& out);
  std::vector<std::uint64_t> sequences() const;  // of the pending calls, ascending

  // caller_session_late.cpp
  Status deadline_error(const PendingCall& call, TimePoint now) const;
  std::string waits_for(const PendingCall& call, TimePoint now) const;
  void add_place(Status& status, std::uint32_t method) const;
  std::string label() const;

  const Config config_;
  Phase phase_ = Phase::kUnused;
  Status ended_;
  std::uint64_t next_sequence_ = 1;
  Calls calls_;
  // A heap, the earliest first, of the calls' deadlines; calls that have ended stay in it until it
  // is twice as large as it need be.
  std::vector<std::pair<TimePoint, std::uint64_t>> deadlines_;
  std::optional<wire::ActorInfo> info_;
  StateLoss state_loss_;
  // Bound to a process of which the head has not told yet: calls wait for what it says.
  std::optional<std::uint64_t> bound_early_;
  std::shared_ptr<CallLink> link_;
  std::uint64_t attempt_ = 0;
  NodeId connected_node_;  // of the last attempt
  Duration backoff_{};
  // Calls, ascending, that wait until the link takes calls again.
  std::vector<std::uint64_t> held_;
  // Arguments in shared memory of calls that have ended here, until the actor has answered them.
  std::unordered_map<std::uint64_t, std::unique_ptr<LentArguments>> lent_;
  // What is due, and when; kNever: it is not.
  static constexpr TimePoint kNever = TimePoint::max();
  TimePoint retry_at_ = kNever;    // connecting again
  TimePoint leave_at_ = kNever;    // kLeaving: closing the link
  TimePoint verdict_at_ = kNever;  // ending the calls that are kLost
  TimePoint close_at_ = kNever;    // the actor is dead: closing the link
  // For errors: since when the actor is in that state, why the last attempt failed, and since when
  // the link is open.
  TimePoint info_since_{};
  Status connect_trouble_;
  TimePoint opened_at_{};
};

}  // namespace troupe::detail

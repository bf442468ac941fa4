#include "actors/session/caller_session.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "actors/session/head_is_away.h"
#include "runtime/base/canary.h"

namespace troupe::detail {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The first attempt to reconnect follows at once; the head usually knows of a death by the second.
constexpr Duration kBackoffFirst = milliseconds(2);
constexpr Duration kBackoffMax = milliseconds(250);
// How long a lost call waits for the head to say whether its process died.
constexpr Duration kVerdictTimeout = seconds(2);
// How long the last answers of a process may take that is known to be dead, or to have a successor.
constexpr Duration kLastAnswersTimeout = milliseconds(200);
// Deadlines of calls that have ended, besides as many as there are calls.
constexpr std::size_t kEndedDeadlinesMax = 256;

}  // namespace

CallerSession::CallerSession(Config config) : config_(config), state_loss_(config_.interface) {}

// --- calls ---------------------------------------------------------------------------------------

std::uint64_t CallerSession::call(CallRequest&& request, CallerOutcome& out) {
  const TimePoint expires = request.deadline.time();
  const std::uint64_t sequence = next_sequence_++;
  const auto it = calls_.try_emplace(sequence, std::move(request)).first;
  if (!ended_.ok()) {
    end_call(it, ended_, out);
    return 0;
  }
  if (!TROUPE_CANARY("call-without-deadline") || phase_ != Phase::kOpen) {
    add_deadline(expires, sequence);
  }
  if (phase_ == Phase::kOpen && !held_.empty()) {
    held_.push_back(sequence);
  } else if (phase_ == Phase::kOpen) {
    send(sequence, it->second, out);
  } else if (phase_ == Phase::kUnused) {
    phase_ = Phase::kWaiting;
    out.find = true;
  }
  return out.ended.empty() ? sequence : 0;
}

void CallerSession::send(std::uint64_t sequence, PendingCall& call, CallerOutcome& out) {
  // One that was sent before may have run: the next one is told instead.
  if (!call.request.despite_state_loss && !call.sent_before) {
    if (Status loss = state_loss_.tell(call.request.method, call.request.argument_bytes());
        !loss.ok()) {
      end_call(calls_.find(sequence), std::move(loss), out);
      return;
    }
  }
  SendOutcome outcome = link_->send_call(sequence, call.request, calls_.size());
  switch (outcome.sent) {
    case Sent::kSent:
      call.state = State::kSent;
      call.sent_before = true;
      if (!call.request.retry) {
        call.request.arguments = {};
        call.request.attached = {};
      }
      if (call.request.stream_items != 0) {
        tell(wire::StreamCredit{sequence, call.request.stream_items});
      }
      break;
    case Sent::kFull:
      held_.push_back(sequence);
      break;
    case Sent::kEnded:  // on_ended follows; the call waits for the next link
      break;
    case Sent::kRefused:
      end_call(calls_.find(sequence), std::move(outcome.refusal), out);
      break;
  }
}

// What has not been sent. Behind a call that waits for the link the later ones wait, too.
void CallerSession::send_in_order(const std::vector<std::uint64_t>& sequences, CallerOutcome& out) {
  for (const std::uint64_t sequence : sequences) {
    const auto it = calls_.find(sequence);
    if (it == calls_.end() || it->second.state != State::kUnsent) continue;
    if (held_.empty()) {
      send(sequence, it->second, out);
    } else {
      held_.push_back(sequence);
    }
  }
}

// A link that does not take what is small and about calls is ended, so that nobody waits for what
// was not said. One that is over says so by itself.
void CallerSession::tell(const wire::CallMessage& message) {
  if (!link_) return;
  const Status sent = link_->send(message);
  if (!sent.ok() && sent.code() != Code::kUnavailable) link_->end(sent);
}

void CallerSession::send_probe(wire::CallProbe probe) {
  const auto it = calls_.find(probe.sequence);
  if (it == calls_.end() || it->second.state != State::kSent) return;
  tell(std::move(probe));
}

void CallerSession::allow_items(std::uint64_t sequence, std::uint64_t items) {
  const auto it = calls_.find(sequence);
  if (it == calls_.end()) return;
  it->second.request.stream_items = items;
  if (it->second.state == State::kSent) tell(wire::StreamCredit{sequence, items});
}

std::optional<CallRequest> CallerSession::cancel(std::uint64_t sequence) {
  const auto it = calls_.find(sequence);
  if (it == calls_.end()) return std::nullopt;
  forget(sequence, it->second);
  std::optional<CallRequest> request(std::move(it->second.request));
  calls_.erase(it);
  return request;
}

// --- how calls end -------------------------------------------------------------------------------

// Before a call ends without the actor's answer.
void CallerSession::forget(std::uint64_t sequence, PendingCall& call) {
  if (call.state != State::kSent || !link_) return;
  tell(wire::CancelCall{sequence});
  if (call.request.lent) lent_.emplace(sequence, std::move(call.request.lent));
}

void CallerSession::end_call(Calls::iterator call, Result<wire::Bytes> result, CallerOutcome& out) {
  if (!result.ok()) {
    Status status = result.status();
    const auto method = call->second.request.method;
    add_place(status, method);
    if (status.context(kInActorsProgram)) {
      status.with(kInCallersProgram, config_.interface.methods[method].type);
    }
    const MethodLabel& deadline_of = call->second.request.deadline_of;
    if (status.code() == Code::kDeadlineExceeded && !deadline_of.empty()) {
      status.with("deadline", fmt::format("inherited from the call of {} inside which this one was "
                                          "made (CallOptions::inherit)",
                                          deadline_of.to_string()));
    }
    result = std::move(status);
  }
  out.ended.push_back({std::move(call->second.request), std::move(result)});
  calls_.erase(call);
}

std::vector<std::uint64_t> CallerSession::sequences() const {
  std::vector<std::uint64_t> sequences;
  sequences.reserve(calls_.size());
  for (const auto& [sequence, call] : calls_) sequences.push_back(sequence);
  std::sort(sequences.begin(), sequences.end());
  return sequences;
}

template <typename Which>
void CallerSession::end_calls(const Status& why, CallerOutcome& out, Which which) {
  for (const auto sequence : sequences()) {
    const auto it = calls_.find(sequence);
    if (which(it->second)) end_call(it, why, out);
  }
}

void CallerSession::end_lost(const std::string& what, CallerOutcome& out) {
  verdict_at_ = kNever;
  const auto end = [&](bool streams, const char* way_out) {
    end_calls(error(Code::kUnavailable, "{}. Whether the call ran is unknown: {}", what, way_out),
              out, [&](const PendingCall& call) {
                return call.state == State::kLost && (call.request.stream_items > 0) == streams;
              });
  };
  end(false, "CallOptions::retry sends such calls again");
  end(true, "a stream is not sent again, its caller asks for what is left of it");
}

// Those that no process of the actor has.
void CallerSession::end_waiting(const Status& why, CallerOutcome& out) {
  end_calls(why, out, [](const PendingCall& call) { return call.state != State::kSent; });
}

void CallerSession::end_all(const Status& why, CallerOutcome& out) {
  ended_ = Status(why);  // (may be ended_ itself)
  deadlines_.clear();
  held_.clear();
  retry_at_ = kNever;
  verdict_at_ = kNever;
  end_calls(ended_, out, [](const PendingCall&) { return true; });
}

// --- the actor -----------------------------------------------------------------------------------

void CallerSession::on_actor(const Result<wire::ActorInfo>& info, TimePoint now,
                             CallerOutcome& out) {
  if (!ended_.ok()) return;
  if (!info.ok() && head_is_away(info.status())) {
    // The search goes on. Who is connected, or about to be, does not need the head.
    if (phase_ == Phase::kWaiting || bound_early_) end_waiting(info.status(), out);
  } else if (!info.ok()) {
    end_all(info.status(), out);
  } else {
    on_state(*info, now, out);
  }
}

void CallerSession::on_state(const wire::ActorInfo& info, TimePoint now, CallerOutcome& out) {
  if (!info_ || info_->state != info.state || info_->generation != info.generation) {
    info_since_ = now;
  }
  info_ = info;
  if (info.state == wire::ActorState::kDead) {
    on_death(info.death, now, out);
    return;
  }
  const bool newer = info.generation > state_loss_.generation();
  if (info.state == wire::ActorState::kRestarting || newer) {
    end_lost(fmt::format("the actor died while it had this call; it is being restarted{}",
                         info.death.ok() ? "" : fmt::format(" ({})", info.death.to_string())),
             out);
  }
  if (newer && !TROUPE_CANARY("stays-with-older-process")) leave_older(now, out);
  if (info.state == wire::ActorState::kAlive && phase_ == Phase::kWaiting) connect(out);
  if (bound_early_ && info.generation >= *bound_early_) open(*bound_early_, now, out);
}

std::uint64_t CallerSession::newest_generation() const {
  return std::max(state_loss_.generation(), info_ ? info_->generation : 0);
}

// The actor has a newer process than the one that the link leads to, or is about to lead to. Where
// that one is dead its link ends by itself, after its last answers. Where the head has lost its
// node it may live on, and nothing more is said to it.
void CallerSession::leave_older(TimePoint now, CallerOutcome& out) {
  if (phase_ == Phase::kOpen || phase_ == Phase::kDraining) {
    phase_ = Phase::kLeaving;
    leave_at_ = now + kLastAnswersTimeout;
    return;
  }
  // On the same node a connection waits for the newer process: the node has one after the other.
  const bool on_the_way = phase_ == Phase::kConnecting || phase_ == Phase::kBinding;
  const bool replaced = bound_early_ && *bound_early_ < info_->generation;
  if (!on_the_way || (!replaced && info_->node_id == connected_node_)) return;
  drop_link(out);
  phase_ = Phase::kWaiting;
}

void CallerSession::on_death(const Status& death, TimePoint now, CallerOutcome& out) {
  ended_ = death.code() == Code::kActorDied
               ? death
               : error(Code::kActorDied, "the actor is dead: {}",
                       death.ok() ? "it has ended" : death.to_string());
  if (!link_) {
    end_all(ended_, out);
    return;
  }
  // Answers that it sent before may still be on their way: the link's end comes after them.
  end_waiting(ended_, out);
  close_at_ = now + kLastAnswersTimeout;
}

// --- the link ------------------------------------------------------------------------------------

void CallerSession::connect(CallerOutcome& out) {
  phase_ = Phase::kConnecting;
  connected_node_ = info_->node_id;
  bound_early_.reset();
  retry_at_ = kNever;
  out.connect = {++attempt_, info_->node_id, info_->endpoint};
}

// What the attempt's link says from now on is ignored.
void CallerSession::drop_link(CallerOutcome& out) {
  ++attempt_;
  bound_early_.reset();
  leave_at_ = kNever;
  held_.clear();
  lent_.clear();
  if (link_) out.closed.push_back(std::exchange(link_, nullptr));
}

bool CallerSession::on_connected(std::uint64_t attempt, Result<std::shared_ptr<CallLink>> link,
                                 TimePoint now, CallerOutcome& out) {
  (void)out;
  if (attempt != attempt_ || phase_ != Phase::kConnecting || !ended_.ok()) return false;
  connect_trouble_ = link.status();
  if (!link.ok()) {
    // (Where somebody else listens in the place of the actor's node the head will tell of the
    // actor's next one.)
    retry_later(now);
    return false;
  }
  phase_ = Phase::kBinding;
  link_ = std::move(*link);
  wire::Bind bind{.actor_id = config_.actor_id,
                  .type = std::string(config_.interface.type),
                  .caller = config_.caller,
                  .methods = {},
                  .caller_actor = config_.self,
                  .caller_generation = config_.self_generation,
                  .generation = newest_generation(),
                  .attempt = attempt};
  for (const auto& method : config_.interface.methods) {
    bind.methods.push_back({std::string(method.name), method.hash});
  }
  tell(std::move(bind));
  return true;
}

// The head may not know yet that the process is gone, or the node not yet have the new one.
void CallerSession::retry_later(TimePoint now) {
  phase_ = Phase::kWaiting;
  bound_early_.reset();
  backoff_ = backoff_ == Duration::zero() ? kBackoffFirst : std::min(backoff_ * 2, kBackoffMax);
  retry_at_ = now + backoff_;
}

void CallerSession::on_ended(std::uint64_t attempt, const Status& why, TimePoint now,
                             CallerOutcome& out) {
  if (attempt != attempt_) return;
  drop_link(out);
  connect_trouble_ = why;
  if (!ended_.ok()) {
    close_at_ = kNever;
    end_all(ended_, out);
  } else {
    lose_sent(now);
    retry_later(now);
  }
}

void CallerSession::lose_sent(TimePoint now) {
  for (auto& [sequence, call] : calls_) {
    if (call.state != State::kSent) continue;
    const bool again = call.request.retry || TROUPE_CANARY("sends-again-unasked");
    call.state = again ? State::kUnsent : State::kLost;
    if (!again) verdict_at_ = std::min(verdict_at_, now + kVerdictTimeout);
  }
}

void CallerSession::on_nonsense(Status why, CallerOutcome& out) {
  close(why.prefixed("a message of the actor"), out);
}

// --- what the actor says -------------------------------------------------------------------------

void CallerSession::on_message(std::uint64_t attempt, wire::CallMessage message,
                               const std::optional<TooLarge>& too_large, TimePoint now,
                               CallerOutcome& out) {
  if (attempt != attempt_) return;
  if (too_large) {
    on_too_large(message, *too_large, out);
  } else if (auto* reply = std::get_if<wire::CallReply>(&message)) {
    end_answered(std::move(*reply), out);
  } else if (auto* item = std::get_if<wire::StreamItem>(&message)) {
    on_item(std::move(*item), out);
  } else if (auto* bound = std::get_if<wire::BindReply>(&message)) {
    on_bound(*bound, now, out);
  } else if (std::holds_alternative<wire::Draining>(message)) {
    on_draining();
  } else if (auto* back = std::get_if<wire::CallGivenBack>(&message)) {
    on_given_back(std::move(*back));
  } else {
    // Not an actor of this version.
    on_nonsense(error(Code::kProtocol, "it is one that only callers send"), out);
  }
}

void CallerSession::on_bound(const wire::BindReply& reply, TimePoint now, CallerOutcome& out) {
  if (phase_ != Phase::kBinding) return;
  const bool older = reply.status.ok() && reply.generation < newest_generation();
  if (older || reply.status.code() == Code::kUnavailable) {
    connect_trouble_ = reply.status;
    drop_link(out);
    retry_later(now);
  } else if (!reply.status.ok()) {
    if (reply.status.code() == Code::kAborted) out.superseded = reply.status;
    end_all(reply.status, out);
  } else if (state_loss_.generation() != 0 && info_->generation < reply.generation) {
    // Whether the next process has what the one before had saved the head says.
    bound_early_ = reply.generation;
  } else {
    open(reply.generation, now, out);
  }
}

void CallerSession::open(std::uint64_t generation, TimePoint now, CallerOutcome& out) {
  phase_ = Phase::kOpen;
  bound_early_.reset();
  opened_at_ = now;
  backoff_ = Duration::zero();
  held_.clear();
  const bool same = generation == state_loss_.generation();
  state_loss_.bound(generation, *info_);
  end_lost(same ? "the connection to the actor broke while it had this call"
                : "the actor died while it had this call, and was restarted",
           out);
  auto unsent = sequences();
  if (TROUPE_CANARY("sends-newest-first")) std::reverse(unsent.begin(), unsent.end());
  send_in_order(unsent, out);
}

// The process will end, and another one follows. The answer says that nothing comes after what was
// sent before it; where it does not leave, the link's end says the same.
void CallerSession::on_draining() {
  if (phase_ != Phase::kOpen) return;
  phase_ = Phase::kDraining;
  tell(wire::Draining{});
}

void CallerSession::on_given_back(wire::CallGivenBack back) {
  lent_.erase(back.sequence);
  const auto it = calls_.find(back.sequence);
  if (it == calls_.end()) return;  // cancelled, or past its deadline
  PendingCall& call = it->second;
  if (TROUPE_CANARY("loses-what-comes-back")) return;
  call.state = State::kUnsent;
  call.sent_before = false;
  if (phase_ == Phase::kOpen) phase_ = Phase::kDraining;
  // (With `retry`, and in shared memory, they are here still.)
  if (call.request.argument_bytes().empty()) call.request.arguments = std::move(back.arguments);
}

void CallerSession::on_reply(std::uint64_t attempt, wire::CallReply reply, CallerOutcome& out) {
  if (attempt == attempt_) end_answered(std::move(reply), out);
}

void CallerSession::end_answered(wire::CallReply reply, CallerOutcome& out) {
  lent_.erase(reply.sequence);
  const auto it = calls_.find(reply.sequence);
  if (it == calls_.end()) return;  // cancelled, or past its deadline
  if (reply.status.ok()) {
    end_call(it, std::move(reply.result), out);
  } else {
    end_call(it, std::move(reply.status), out);
  }
}

std::optional<CallRequest> CallerSession::on_result(std::uint64_t sequence) {
  std::optional<CallRequest> request;  // nothing: cancelled, or past its deadline
  const auto it = calls_.find(sequence);
  if (it != calls_.end()) {
    request.emplace(std::move(it->second.request));
    calls_.erase(it);
  } else {
    lent_.erase(sequence);
  }
  return request;
}

void CallerSession::on_error(std::uint64_t sequence, Status why, CallerOutcome& out) {
  end_answered({sequence, std::move(why), {}}, out);
}

void CallerSession::on_item(wire::StreamItem item, CallerOutcome& out) {
  const auto it = calls_.find(item.sequence);
  if (it == calls_.end()) return;  // cancelled, or past its deadline
  out.item_sink = it->second.request.sink.sink();
  out.item = std::move(item);
}

// What came beside the message is more than this process takes, and was not kept.
void CallerSession::on_too_large(const wire::CallMessage& message, const TooLarge& too_large,
                                 CallerOutcome& out) {
  std::uint64_t sequence = 0;
  const char* what = "a result";
  if (const auto* reply = std::get_if<wire::CallReply>(&message)) {
    sequence = reply->sequence;
  } else if (const auto* item = std::get_if<wire::StreamItem>(&message)) {
    sequence = item->sequence;
    what = "an item of the stream";
  } else if (const auto* back = std::get_if<wire::CallGivenBack>(&message)) {
    sequence = back->sequence;
    what = "the arguments, which came back,";
  }
  const bool answers = !std::holds_alternative<wire::StreamItem>(message);
  if (answers) lent_.erase(sequence);
  const auto it = calls_.find(sequence);
  if (it == calls_.end()) return;  // cancelled, or past its deadline
  if (!answers) forget(sequence, it->second);
  end_call(it, too_large.error(what), out);
}

void CallerSession::on_writable(std::uint64_t attempt, CallerOutcome& out) {
  if (attempt != attempt_ || phase_ != Phase::kOpen) return;
  if (TROUPE_CANARY("forgets-what-waits-for-the-link")) return;
  send_in_order(std::exchange(held_, {}), out);
}

// --- time ----------------------------------------------------------------------------------------

void CallerSession::add_deadline(TimePoint time, std::uint64_t sequence) {
  if (deadlines_.size() > 2 * calls_.size() + kEndedDeadlinesMax) {
    std::erase_if(deadlines_, [&](const auto& d) { return !calls_.contains(d.second); });
    std::make_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
  }
  deadlines_.emplace_back(time, sequence);
  std::push_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
}

void CallerSession::on_time(TimePoint now, CallerOutcome& out) {
  const auto is_due = [now](TimePoint& due) {
    if (due > now) return false;
    due = kNever;
    return true;
  };
  if (is_due(close_at_)) close(ended_, out);
  if (is_due(leave_at_)) {
    on_ended(attempt_, error(Code::kUnavailable, "the actor has another process by now"), now, out);
  }
  if (is_due(verdict_at_)) {
    end_lost(
        "the connection to the actor broke while it had this call, and the head has not said why",
        out);
  }
  if (is_due(retry_at_) && phase_ == Phase::kWaiting && info_ &&
      info_->state == wire::ActorState::kAlive) {
    connect(out);
  }
  end_expired(now, out);
}

void CallerSession::end_expired(TimePoint now, CallerOutcome& out) {
  while (!deadlines_.empty()) {
    const auto [time, sequence] = deadlines_.front();
    const auto it = calls_.find(sequence);
    if (it != calls_.end() && time > now) break;
    std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
    deadlines_.pop_back();
    if (it == calls_.end()) continue;
    const Status why = deadline_error(it->second, now);
    forget(sequence, it->second);
    end_call(it, why, out);
  }
}

// --- the end -------------------------------------------------------------------------------------

void CallerSession::fail_waiting(const Status& why, CallerOutcome& out) {
  if (phase_ == Phase::kUnused || phase_ == Phase::kWaiting) end_waiting(why, out);
}

void CallerSession::fail(const Status& why, CallerOutcome& out) {
  if (ended_.ok()) end_all(why, out);
}

void CallerSession::close(const Status& why, CallerOutcome& out) {
  drop_link(out);
  close_at_ = kNever;
  out.stop_finding = true;
  end_all(ended_.ok() ? why : Status(ended_), out);
}

}  // namespace troupe::detail

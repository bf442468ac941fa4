#include "actors/actor_channel.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "runtime/base/limits.h"

namespace troupe::detail {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// The first attempt to reconnect follows at once; the head usually knows of a death by the second.
constexpr Duration kBackoffFirst = milliseconds(2);
constexpr Duration kBackoffMax = milliseconds(250);
constexpr Duration kConnectTimeout = std::chrono::seconds(5);
// How long a lost call waits for the head to say whether its process died.
constexpr Duration kVerdictTimeout = std::chrono::seconds(2);
// How long the last answers of a dead actor may take, once its death is known.
constexpr Duration kLastAnswersTimeout = milliseconds(200);
// Deadlines of calls that have ended, besides as many as there are calls.
constexpr std::size_t kEndedDeadlinesMax = 256;
// A caller with more calls than these on their way streams them.
constexpr std::size_t kCallsInStream = 8;
// Of small calls, how many go before it is looked at how many bytes wait to be sent.
constexpr std::uint64_t kCallsPerLook = 64;

std::span<const std::byte> arguments_of(const CallRequest& request) {
  if (request.attached) return *request.attached;
  if (!request.slab.valid()) return request.arguments;
  return request.slab.space().first(request.slab.used());
}

}  // namespace

ActorChannel::ActorChannel(std::shared_ptr<const ChannelEnvironment> environment, ActorId actor_id,
                           ActorInterface interface, ClientId caller)
    : environment_(std::move(environment)),
      actor_id_(actor_id),
      interface_(interface),
      caller_(caller),
      state_loss_(interface_) {}

ActorChannel::~ActorChannel() {
  if (!forked()) return;
  // Closing it here would end it for the parent.
  MutexLock lock(mutex_);
  keep_forked(new auto(connection_));
  keep_forked(new auto(fast_road_));
}

// --- calls

std::uint64_t ActorChannel::call(CallRequest request) {
  if (forked()) [[unlikely]] {
    request.sink.answer(ProcessStamp::forked_error(), {});
    return 0;
  }
  Answers answers;
  std::uint64_t sequence = 0;
  {
    MutexLock lock(mutex_);
    const TimePoint expires = request.deadline.time();
    sequence = next_sequence_++;
    const auto it =
        calls_.emplace(sequence, PendingCall{std::move(request), SendState::kUnsent}).first;
    if (!ended_.ok()) {
      end_call_locked(it, ended_, answers);
    } else {
      add_deadline_locked(expires, sequence);
      arm_locked(expires);
      if (road_ == Road::kOpen && !held_.empty()) {
        held_.push_back(sequence);
      } else if (road_ == Road::kOpen) {
        send_locked(sequence, it->second, answers);
      } else if (road_ == Road::kNone) {
        road_ = Road::kWaiting;
        environment_->loop->post([self = shared_from_this()] { self->start_watch(); });
      }
    }
  }
  const bool over = !answers.items.empty();
  deliver(std::move(answers));
  return over ? 0 : sequence;
}

// The call, and what it may send back.
void ActorChannel::send_stream_locked(std::uint64_t sequence, PendingCall& call, Answers& answers) {
  const std::uint64_t items = std::exchange(call.request.stream_items, 0);
  send_locked(sequence, call, answers);
  const auto it = calls_.find(sequence);
  if (it == calls_.end()) return;
  it->second.request.stream_items = items;
  if (it->second.state == SendState::kSent) tell_locked(wire::StreamCredit{sequence, items});
}

// What is small and about calls has room on every connection that is of use: one without is ended,
// so that nobody waits for what was not said. One that has ended says so by itself.
void ActorChannel::tell_locked(const wire::CallMessage& message) {
  if (!connection_) return;
  const Status sent = connection_->send(wire::encode(message));
  if (sent.ok() || sent.code() == Code::kUnavailable) return;
  connection_->close();
  environment_->loop->post([weak = weak_from_this(), attempt = attempt_, sent] {
    if (auto self = weak.lock()) self->on_close(attempt, sent);
  });
}

void ActorChannel::send_probe(wire::CallProbe probe) {
  if (forked()) return;
  MutexLock lock(mutex_);
  const auto it = calls_.find(probe.sequence);
  if (it == calls_.end() || it->second.state != SendState::kSent) return;
  tell_locked(std::move(probe));
}

void ActorChannel::allow_items(std::uint64_t sequence, std::uint64_t items) {
  if (forked()) return;
  MutexLock lock(mutex_);
  const auto it = calls_.find(sequence);
  if (it == calls_.end()) return;
  it->second.request.stream_items = items;
  if (it->second.state == SendState::kSent) tell_locked(wire::StreamCredit{sequence, items});
}

void ActorChannel::send_locked(std::uint64_t sequence, PendingCall& call, Answers& answers) {
  if (call.request.stream_items != 0) {
    send_stream_locked(sequence, call, answers);
    return;
  }
  // One that was sent before may have run: the next one is told instead.
  if (!call.request.despite_state_loss && !call.sent_before) {
    if (Status loss = state_loss_.tell(arguments_of(call.request)); !loss.ok()) {
      end_call_locked(calls_.find(sequence), std::move(loss), answers);
      return;
    }
  }
  if (fast_road_ && send_by_road_locked(sequence, call, answers)) return;
  // Many calls, or large ones, fill a connection: the rest waits here, in order. Small ones do so
  // slowly, so that not each of them needs to look.
  const bool looks =
      arguments_of(call.request).size() >= wire::kAttachedBytesMin || sequence % kCallsPerLook == 0;
  if (looks && connection_->queued_bytes() > limits::kUnsentArgumentBytesMax) {
    held_.push_back(sequence);
    return;
  }
  const Status sent = send_call_locked(sequence, call);
  if (sent.ok()) {
    ++socket_calls_;
    call.state = SendState::kSent;
    call.sent_before = true;
    if (!call.request.retry) call.request.arguments = {};
    if (!call.request.retry) call.request.attached = {};
  } else if (sent.code() !=
             Code::kUnavailable) {  // else on_close comes; it waits for the next road
    end_call_locked(calls_.find(sequence), sent, answers);
  }
}

// Over the socket. The arguments stay.
Status ActorChannel::send_call_locked(std::uint64_t sequence, PendingCall& call) {
  CallRequest& request = call.request;
  if (request.slab.valid()) {
    const auto bytes = arguments_of(request);
    request.arguments.assign(bytes.begin(), bytes.end());
    request.slab = SlabLease();
  }
  if (request.arguments.size() >= wire::kAttachedBytesMin) {
    request.attached = std::make_shared<const wire::Bytes>(std::exchange(request.arguments, {}));
  }
  wire::Call message;
  message.sequence = sequence;
  message.method = request.method;
  message.timeout_us =
      std::chrono::duration_cast<microseconds>(request.deadline.remaining()).count();
  message.arguments = std::move(request.arguments);
  wire::CallMessage envelope(std::move(message));
  wire::Bytes frame = wire::encode(envelope);
  request.arguments = std::move(std::get<wire::Call>(envelope).arguments);
  if (request.attached) return connection_->send(std::move(frame), request.attached);
  // Who has many calls on their way does not wait for each: they leave together.
  return calls_.size() > kCallsInStream ? connection_->send_soon(std::move(frame))
                                        : connection_->send(std::move(frame));
}

// What has not been sent. Behind one that is held back the others are, too.
void ActorChannel::send_in_order_locked(const std::vector<std::uint64_t>& sequences,
                                        Answers& answers) {
  for (const std::uint64_t sequence : sequences) {
    const auto it = calls_.find(sequence);
    if (it == calls_.end() || it->second.state != SendState::kUnsent) continue;
    if (held_.empty()) {
      send_locked(sequence, it->second, answers);
    } else {
      held_.push_back(sequence);
    }
  }
}

void ActorChannel::on_drained(std::uint64_t attempt) {
  Answers answers;
  {
    MutexLock lock(mutex_);
    if (attempt != attempt_ || road_ != Road::kOpen) return;
    send_in_order_locked(std::exchange(held_, {}), answers);
  }
  deliver(std::move(answers));
}

void ActorChannel::cancel(std::uint64_t sequence) {
  if (forked()) return;
  Calls::node_type dropped;  // let go outside the lock
  MutexLock lock(mutex_);
  const auto it = calls_.find(sequence);
  if (it == calls_.end()) return;
  forget_locked(it);
  dropped = calls_.extract(it);
  if (fast_road_) fast_road_->nudge();
}

// Before a call ends without the actor's answer.
void ActorChannel::forget_locked(Calls::iterator call) {
  if (call->second.state != SendState::kSent || !connection_) return;
  tell_locked(wire::CancelCall{call->first});
  if (call->second.request.slab.valid()) {
    lent_slabs_.emplace(call->first, std::move(call->second.request.slab));
  }
}

void ActorChannel::end_call_locked(Calls::iterator call, Result<wire::Bytes> result,
                                   Answers& answers) {
  if (!result.ok()) {
    Status status = result.status();
    const auto method = call->second.request.method;
    add_place_locked(status, method);
    if (status.context(kInActorsProgram)) {
      status.with(kInCallersProgram, interface_.methods[method].type);
    }
    const MethodLabel& deadline_of = call->second.request.deadline_of;
    if (status.code() == Code::kDeadlineExceeded && !deadline_of.empty()) {
      status.with("deadline", fmt::format("inherited from the call of {} inside which this one was "
                                          "made (CallOptions::inherit)",
                                          deadline_of.to_string()));
    }
    result = std::move(status);
  }
  answers.items.emplace_back(std::move(call->second.request), std::move(result));
  calls_.erase(call);
}

std::vector<std::uint64_t> ActorChannel::sequences_locked() const {
  std::vector<std::uint64_t> sequences;
  sequences.reserve(calls_.size());
  for (const auto& [sequence, call] : calls_) sequences.push_back(sequence);
  std::sort(sequences.begin(), sequences.end());
  return sequences;
}

void ActorChannel::end_lost_locked(const Status& why, Answers& answers) {
  for (const auto sequence : sequences_locked()) {
    const auto it = calls_.find(sequence);
    if (it->second.state == SendState::kLost) end_call_locked(it, why, answers);
  }
}

// Those that no process of the actor has.
void ActorChannel::end_waiting_locked(const Status& why, Answers& answers) {
  for (const auto sequence : sequences_locked()) {
    const auto it = calls_.find(sequence);
    if (it->second.state != SendState::kSent) end_call_locked(it, why, answers);
  }
}

void ActorChannel::end_all_locked(const Status& why, Answers& answers) {
  ended_ = why;  // (may be ended_ itself)
  deadlines_.clear();
  disarm_locked();
  for (const auto sequence : sequences_locked()) {
    end_call_locked(calls_.find(sequence), ended_, answers);
  }
}

void ActorChannel::deliver(Answers answers) const {
  if (answers.items.empty()) return;
  for (auto& [request, result] : answers.items) {
    request.sink.answer(result.status(), result.ok() ? std::span<const std::byte>(*result)
                                                     : std::span<const std::byte>());
  }
  // A thread that waits for one of them may sleep on the fast road.
  std::shared_ptr<CallerRoad> road;
  {
    MutexLock lock(mutex_);
    road = fast_road_;
  }
  if (road) road->nudge();
}

std::string ActorChannel::label_locked() const {
  if (info_ && !info_->name.empty()) return info_->name;
  return fmt::format("{} {}", interface_.type, actor_id_.brief());
}

// --- deadlines

void ActorChannel::add_deadline_locked(TimePoint time, std::uint64_t sequence) {
  if (deadlines_.size() > 2 * calls_.size() + kEndedDeadlinesMax) {
    std::erase_if(deadlines_,
                  [&](const auto& d) TROUPE_NO_ANALYSIS { return !calls_.contains(d.second); });
    std::make_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
  }
  deadlines_.emplace_back(time, sequence);
  std::push_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
}

void ActorChannel::arm_locked(TimePoint time) {
  if (armed_ && *armed_ <= time) return;
  disarm_locked();
  armed_ = time;
  const auto& clock = environment_->loop->clock();
  timer_ = environment_->loop->call_after(Deadline::at(time).remaining(clock.now()),
                                          [weak = weak_from_this()] {
                                            if (auto self = weak.lock()) self->on_timer();
                                          });
}

// A timer that is left would keep the channel's memory until its time: of actors that live for a
// moment that is most of what a driver holds.
void ActorChannel::disarm_locked() {
  armed_.reset();
  const net::TimerId timer = std::exchange(timer_, 0);
  if (timer == 0) return;
  environment_->loop->post([loop = environment_->loop, timer] { loop->cancel(timer); });
}

void ActorChannel::on_timer() {
  Answers answers;
  {
    MutexLock lock(mutex_);
    const TimePoint now = environment_->loop->clock().now();
    if (armed_ && *armed_ <= now) {
      armed_.reset();
      timer_ = 0;
    }
    while (!deadlines_.empty()) {
      const auto [time, sequence] = deadlines_.front();
      const auto it = calls_.find(sequence);
      if (it != calls_.end() && time > now) break;
      std::pop_heap(deadlines_.begin(), deadlines_.end(), std::greater<>());
      deadlines_.pop_back();
      if (it == calls_.end()) continue;
      const Status why = deadline_error_locked(it->second);
      forget_locked(it);
      end_call_locked(it, why, answers);
    }
    if (!deadlines_.empty()) arm_locked(deadlines_.front().first);
  }
  deliver(std::move(answers));
}

// --- finding the actor

void ActorChannel::start_watch() {
  const auto watch = environment_->directory->watch(
      actor_id_, "", [weak = weak_from_this()](const Result<wire::ActorInfo>& info) {
        if (auto self = weak.lock()) self->on_actor(info);
      });
  MutexLock lock(mutex_);
  watch_ = watch;
}

void ActorChannel::on_actor(const Result<wire::ActorInfo>& info) {
  Answers answers;
  std::shared_ptr<net::Connection> left;  // closed outside the lock
  {
    MutexLock lock(mutex_);
    if (!ended_.ok()) return;
    if (!info.ok() && head_is_away(info.status())) {
      // The watch goes on. Who is connected, or about to be, does not need the head.
      if (road_ == Road::kWaiting || bound_early_) end_waiting_locked(info.status(), answers);
    } else if (!info.ok()) {
      end_all_locked(info.status(), answers);
    } else {
      if (!info_ || info_->state != info->state || info_->generation != info->generation) {
        info_since_ = environment_->loop->clock().now();
      }
      info_ = *info;
      if (info->state == wire::ActorState::kDead) {
        on_death_locked(info->death, answers);
      } else {
        if (info->state == wire::ActorState::kRestarting ||
            info->generation > state_loss_.generation()) {
          end_lost_locked(
              error(Code::kUnavailable,
                    "the actor died while it had this call; it is being restarted{}. Whether the "
                    "call ran is unknown: CallOptions::retry sends such calls again",
                    info->death.ok() ? "" : fmt::format(" ({})", info->death.to_string())),
              answers);
        }
        if (info->generation > state_loss_.generation()) left = leave_older_locked();
        if (info->state == wire::ActorState::kAlive && road_ == Road::kWaiting) connect_locked();
        if (bound_early_ && info->generation >= *bound_early_) open_locked(*bound_early_, answers);
      }
    }
  }
  if (left) left->close();
  deliver(std::move(answers));
}

std::uint64_t ActorChannel::newest_generation_locked() const {
  return std::max(state_loss_.generation(), info_ ? info_->generation : 0);
}

// The actor has a newer process than the one that the connection leads to, or is about to have.
// Where that one is dead its connection ends by itself, after its last answers. Where the head has
// lost its node it may live on, and nothing more is said to it. The connection to close, if any.
std::shared_ptr<net::Connection> ActorChannel::leave_older_locked() {
  if (road_ == Road::kOpen || road_ == Road::kDraining) {
    road_ = Road::kLeaving;
    environment_->loop->call_after(kLastAnswersTimeout,
                                   [weak = weak_from_this(), attempt = attempt_] {
                                     if (auto self = weak.lock()) self->stop_leaving(attempt);
                                   });
    return nullptr;
  }
  // On the same node a connection waits for the newer process: the node has one after the other.
  const bool on_the_way = road_ == Road::kConnecting || road_ == Road::kBinding;
  const bool replaced = bound_early_ && *bound_early_ < info_->generation;
  if (!on_the_way || (!replaced && info_->node_id == connected_node_)) return nullptr;
  ++attempt_;
  road_ = Road::kWaiting;
  bound_early_.reset();
  return std::move(connection_);
}

void ActorChannel::stop_leaving(std::uint64_t attempt) {
  std::shared_ptr<net::Connection> connection;
  {
    MutexLock lock(mutex_);
    if (attempt_ != attempt || road_ != Road::kLeaving) return;
    connection = connection_;
  }
  if (connection) connection->close();
  on_close(attempt, error(Code::kUnavailable, "the actor has another process by now"));
}

void ActorChannel::on_death_locked(const Status& death, Answers& answers) {
  ended_ = death.code() == Code::kActorDied
               ? death
               : error(Code::kActorDied, "the actor is dead: {}",
                       death.ok() ? "it has ended" : death.to_string());
  watch_ = 0;  // it has ended with the actor
  if (!connection_) {
    end_all_locked(ended_, answers);
    return;
  }
  // Answers that it sent before may still be on their way: the connection's end comes after them.
  for (const auto sequence : sequences_locked()) {
    const auto it = calls_.find(sequence);
    if (it->second.state != SendState::kSent) end_call_locked(it, ended_, answers);
  }
  environment_->loop->call_after(kLastAnswersTimeout, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->close(Status());
  });
}

// The port of the actor's node; its local socket where this process is there too.
net::Address ActorChannel::address_locked() const {
  net::Address address{info_->endpoint.host, info_->endpoint.port, {}};
  if (!environment_->node_id.empty() && environment_->node_id == info_->node_id) {
    address.local_name = info_->endpoint.local_name;
  }
  return address;
}

void ActorChannel::connect_locked() {
  road_ = Road::kConnecting;
  connected_node_ = info_->node_id;
  bound_early_.reset();
  const std::uint64_t attempt = ++attempt_;
  net::connect(*environment_->loop, address_locked(), "actor/" + actor_id_.to_string(),
               environment_->token, Deadline::after(kConnectTimeout, environment_->loop->clock()),
               [weak = weak_from_this(), attempt](Result<ByteStream> socket) {
                 if (auto self = weak.lock()) self->on_connected(attempt, std::move(socket));
               });
}

void ActorChannel::on_connected(std::uint64_t attempt, Result<ByteStream> socket) {
  Answers answers;
  std::shared_ptr<net::Connection> connection;
  wire::Bind bind{.actor_id = actor_id_,
                  .type = std::string(interface_.type),
                  .caller = caller_,
                  .methods = {},
                  .caller_actor = environment_->self,
                  .caller_generation = environment_->self_generation};
  {
    MutexLock lock(mutex_);
    if (attempt != attempt_ || !ended_.ok()) return;
    connect_trouble_ = socket.status();
    bind.generation = newest_generation_locked();
    if (!socket.ok()) {
      // (Where somebody else listens in the place of the actor's node the head will tell of the
      // actor's next one.)
      retry_later_locked();
    } else {
      road_ = Road::kBinding;
      connection = connection_ =
          net::make_connection(*environment_->loop, std::move(*socket),
                               "actor " + actor_id_.brief(), environment_->connections);
    }
  }
  deliver(std::move(answers));
  if (!connection) return;
  connection->start({.on_frame = {},
                     .on_attached =
                         [weak = weak_from_this(), attempt](std::span<const std::byte> frame,
                                                            net::Attachment&& attachment) {
                           if (auto self = weak.lock())
                             self->on_frame(attempt, frame, std::move(attachment));
                         },
                     .on_close =
                         [weak = weak_from_this(), attempt](const Status& why) {
                           if (auto self = weak.lock()) self->on_close(attempt, why);
                         },
                     .on_drained =
                         [weak = weak_from_this(), attempt] {
                           if (auto self = weak.lock()) self->on_drained(attempt);
                         }});
  for (const auto& method : interface_.methods) {
    bind.methods.push_back({std::string(method.name), method.hash});
  }
  MutexLock lock(mutex_);
  if (attempt == attempt_) tell_locked(std::move(bind));
}

// The head may not know yet that the process is gone, or the node not yet have the new one.
void ActorChannel::retry_later_locked() {
  road_ = Road::kWaiting;
  bound_early_.reset();
  backoff_ = backoff_ == Duration::zero() ? kBackoffFirst : std::min(backoff_ * 2, kBackoffMax);
  environment_->loop->call_after(backoff_, [weak = weak_from_this(), attempt = attempt_] {
    auto self = weak.lock();
    if (!self) return;
    MutexLock lock(self->mutex_);
    if (self->attempt_ != attempt || self->road_ != Road::kWaiting || !self->ended_.ok()) return;
    if (self->info_ && self->info_->state == wire::ActorState::kAlive) self->connect_locked();
  });
}

// --- talking to it

void ActorChannel::on_frame(std::uint64_t attempt, std::span<const std::byte> frame,
                            net::Attachment&& attachment) {
  auto message = wire::decode_call(frame, std::move(attachment.bytes));
  if (message.ok() && attachment.refused_bytes) {
    on_refused(*message, *attachment.refused_bytes);
    return;
  }
  if (message.ok()) {
    if (auto* reply = std::get_if<wire::CallReply>(&*message)) {
      on_reply(std::move(*reply));
      return;
    }
    if (const auto* item = std::get_if<wire::StreamItem>(&*message)) {
      on_item(*item);
      return;
    }
    if (auto* reply = std::get_if<wire::BindReply>(&*message)) {
      on_bound(attempt, *reply);
      return;
    }
    if (std::holds_alternative<wire::Draining>(*message)) {
      on_draining(attempt);
      return;
    }
    if (auto* back = std::get_if<wire::CallGivenBack>(&*message)) {
      on_given_back(std::move(*back));
      return;
    }
  }
  // Not an actor of this version: the connection is useless, and a new one would say the same.
  Status why = message.ok() ? error(Code::kProtocol, "the actor sent what only callers send")
                            : message.status().prefixed("a message of the actor");
  close(std::move(why));
}

void ActorChannel::on_bound(std::uint64_t attempt, const wire::BindReply& reply) {
  Answers answers;
  std::shared_ptr<net::Connection> refused;  // closed outside the lock
  bool superseded = false;
  {
    MutexLock lock(mutex_);
    if (attempt != attempt_ || road_ != Road::kBinding) return;
    const bool older = reply.status.ok() && reply.generation < newest_generation_locked();
    if (older || reply.status.code() == Code::kUnavailable) {
      connect_trouble_ = reply.status;
      attempt_++;
      refused = std::move(connection_);
      retry_later_locked();
    } else if (!reply.status.ok()) {
      superseded = reply.status.code() == Code::kAborted && environment_->on_superseded;
      end_all_locked(reply.status, answers);
    } else if (state_loss_.generation() != 0 && info_->generation < reply.generation) {
      // Whether the next process has what the one before had saved the head says.
      bound_early_ = reply.generation;
    } else {
      open_locked(reply.generation, answers);
    }
  }
  if (superseded) environment_->on_superseded(reply.status);
  if (refused) refused->close();
  deliver(std::move(answers));
}

void ActorChannel::open_locked(std::uint64_t generation, Answers& answers) {
  road_ = Road::kOpen;
  bound_early_.reset();
  opened_at_ = environment_->loop->clock().now();
  backoff_ = Duration::zero();
  socket_calls_ = answered_ = 0;
  held_.clear();
  road_offered_ = false;
  lent_slabs_.clear();
  const bool same = generation == state_loss_.generation();
  state_loss_.bound(generation, *info_);
  end_lost_locked(Status(Code::kUnavailable,
                         same ? "the connection to the actor broke while it had this call. "
                                "Whether the call ran is unknown: CallOptions::retry sends such "
                                "calls again"
                              : "the actor died while it had this call, and was restarted. "
                                "Whether the call ran is unknown: CallOptions::retry sends such "
                                "calls again"),
                  answers);
  send_in_order_locked(sequences_locked(), answers);
}

// The process will end, and another one follows. The answer says that nothing comes after what was
// sent before it; where it does not leave, the connection's end says the same.
void ActorChannel::on_draining(std::uint64_t attempt) {
  MutexLock lock(mutex_);
  if (attempt != attempt_ || road_ != Road::kOpen) return;
  road_ = Road::kDraining;
  tell_locked(wire::Draining{});
}

void ActorChannel::on_given_back(wire::CallGivenBack back) {
  MutexLock lock(mutex_);
  lent_slabs_.erase(back.sequence);
  const auto it = calls_.find(back.sequence);
  if (it == calls_.end()) return;  // cancelled, or past its deadline
  PendingCall& call = it->second;
  call.state = SendState::kUnsent;
  call.sent_before = false;
  if (road_ == Road::kOpen) road_ = Road::kDraining;
  // (With `retry`, and in a slab, they are here still.)
  if (arguments_of(call.request).empty()) {
    call.request.arguments = std::move(back.arguments);
  }
}

void ActorChannel::on_reply(wire::CallReply reply) {
  Answers answers;
  {
    MutexLock lock(mutex_);
    count_answer_locked();
    lent_slabs_.erase(reply.sequence);
    const auto it = calls_.find(reply.sequence);
    if (it == calls_.end()) return;  // cancelled, or past its deadline
    if (reply.status.ok()) {
      end_call_locked(it, std::move(reply.result), answers);
    } else {
      end_call_locked(it, std::move(reply.status), answers);
    }
  }
  deliver(std::move(answers));
}

void ActorChannel::on_item(const wire::StreamItem& item) {
  std::shared_ptr<CallSink> sink;
  {
    MutexLock lock(mutex_);
    const auto it = calls_.find(item.sequence);
    if (it == calls_.end()) return;  // cancelled, or past its deadline
    sink = it->second.request.sink.sink();
  }
  if (sink) sink->item(item.index, item.item);
}

// What came beside the message is more than this process takes, and was not kept.
void ActorChannel::on_refused(const wire::CallMessage& message, std::uint64_t bytes) {
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
  Answers answers;
  {
    MutexLock lock(mutex_);
    const auto it = calls_.find(sequence);
    if (it == calls_.end()) return;  // cancelled, or past its deadline
    if (std::holds_alternative<wire::StreamItem>(message)) forget_locked(it);
    end_call_locked(it, too_large_error(what, bytes, environment_->connections), answers);
  }
  deliver(std::move(answers));
}

void ActorChannel::on_close(std::uint64_t attempt, const Status& why) {
  std::shared_ptr<net::Connection> connection;  // let go outside the lock
  std::shared_ptr<CallerRoad> road;
  std::shared_ptr<RoadSlot> slot;
  Answers answers;
  {
    MutexLock lock(mutex_);
    if (attempt != attempt_) return;
    road = fast_road_;
  }
  // What the process answered before its end is there still.
  if (road) (void)drain(*road, kAllAnswers);
  {
    MutexLock lock(mutex_);
    if (attempt != attempt_) return;
    connection = std::move(connection_);
    road = std::move(fast_road_);
    slot = std::move(road_slot_);
    connect_trouble_ = why;
    attempt_++;
    if (!ended_.ok()) {
      end_all_locked(ended_, answers);
    } else {
      lose_sent_locked();
    }
  }
  drop_road(std::move(road), std::move(slot));
  deliver(std::move(answers));
}

void ActorChannel::lose_sent_locked() {
  bool lost = false;
  for (auto& [sequence, call] : calls_) {
    if (call.state != SendState::kSent) continue;
    call.state = call.request.retry ? SendState::kUnsent : SendState::kLost;
    lost = lost || call.state == SendState::kLost;
  }
  retry_later_locked();
  if (!lost) return;
  environment_->loop->call_after(kVerdictTimeout, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (!self) return;
    Answers answers;
    {
      MutexLock lock(self->mutex_);
      self->end_lost_locked(
          Status(Code::kUnavailable,
                 "the connection to the actor broke while it had this call, and the head has not "
                 "said why. Whether the call ran is unknown"),
          answers);
    }
    self->deliver(std::move(answers));
  });
}

// --- the end

void ActorChannel::fail_waiting(const Status& why) {
  Answers answers;
  {
    MutexLock lock(mutex_);
    if (road_ == Road::kNone || road_ == Road::kWaiting) end_waiting_locked(why, answers);
  }
  deliver(std::move(answers));
}

void ActorChannel::fail(Status why) {
  Answers answers;
  {
    MutexLock lock(mutex_);
    if (ended_.ok()) end_all_locked(why, answers);
  }
  deliver(std::move(answers));
}

void ActorChannel::close(Status why) {
  if (forked()) return;
  std::shared_ptr<net::Connection> connection;
  std::shared_ptr<CallerRoad> road;
  std::shared_ptr<RoadSlot> slot;
  Directory::WatchId watch = 0;
  Answers answers;
  if (why.ok()) {  // the actor has ended: its last answers count
    {
      MutexLock lock(mutex_);
      road = fast_road_;
    }
    if (road) (void)drain(*road, kAllAnswers);
  }
  {
    MutexLock lock(mutex_);
    connection = std::move(connection_);
    road = std::move(fast_road_);
    slot = std::move(road_slot_);
    watch = std::exchange(watch_, 0);
    attempt_++;
    end_all_locked(ended_.ok() ? why : Status(ended_), answers);
  }
  if (watch != 0) environment_->directory->unwatch(watch);
  if (connection) connection->close();
  drop_road(std::move(road), std::move(slot));
  deliver(std::move(answers));
}

bool ActorChannel::used() const {
  MutexLock lock(mutex_);
  return next_sequence_ > 1;
}

bool ActorChannel::over() const {
  MutexLock lock(mutex_);
  return !ended_.ok() && !connection_ && !fast_road_;
}

bool ActorChannel::ended() const {
  MutexLock lock(mutex_);
  return !ended_.ok();
}

}  // namespace troupe::detail

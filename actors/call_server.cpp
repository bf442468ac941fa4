#include "actors/call_server.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "actors/call_peer.h"
#include "actors/session/call_request.h"
#include "runtime/base/large_buffers.h"
#include "troupe/serialize.h"

namespace troupe::detail {

CallServer::CallServer(net::EventLoop& loop, ActorId actor_id, std::uint64_t generation,
                       ActorInterface interface, std::shared_ptr<Mailbox> mailbox,
                       std::shared_ptr<HostPageSegment> host_page,
                       const net::ConnectionOptions& connections)
    : loop_(loop),
      mailbox_(std::move(mailbox)),
      host_page_(std::move(host_page)),
      connections_(connections),
      session_({.actor_id = actor_id, .generation = generation, .interface = interface}) {}

// --- connections ---------------------------------------------------------------------------------

void CallServer::accept(ByteStream socket, const std::string& peer_name) {
  const std::weak_ptr<CallServer> weak = weak_from_this();
  auto peer = std::make_shared<Peer>(
      net::make_connection(loop_, std::move(socket), peer_name, connections_),
      2 * connections_.low_water_bytes);
  peer->set_on_end([weak, peer = std::weak_ptr(peer), &loop = loop_] {
    loop.post([weak, peer] {
      const auto self = weak.lock();
      const auto ended = peer.lock();
      if (self && ended) self->on_close(ended);
    });
  });
  peers_.insert(peer);
  peer->connection().start(
      {.on_frame = {},
       .on_attached =
           [weak, peer](std::span<const std::byte> frame, net::Attachment&& attachment) {
             if (auto self = weak.lock()) self->on_frame(peer, frame, std::move(attachment));
           },
       .on_close =
           [weak, peer](const Status&) {
             if (auto self = weak.lock()) self->on_close(peer);
           },
       .on_drained =
           [weak, peer] {
             if (auto self = weak.lock()) self->on_drained(peer);
           }});
}

void CallServer::on_frame(const std::shared_ptr<Peer>& peer, std::span<const std::byte> frame,
                          net::Attachment&& attachment) {
  auto message = wire::decode_call(frame, std::move(attachment.bytes));
  if (message.ok() && !peer->bound) {
    if (const auto* bind = std::get_if<wire::Bind>(&*message)) return on_bind(peer, *bind);
  } else if (message.ok()) {
    if (auto* call = std::get_if<wire::Call>(&*message)) {
      const auto& bytes = attachment.refused_bytes;
      return on_call(peer, std::move(*call),
                     bytes ? TooLarge{*bytes, connections_.attachment_bytes_max}.error("arguments")
                           : Status());
    }
    if (const auto* cancel = std::get_if<wire::CancelCall>(&*message)) {
      return on_cancel(peer, *cancel);
    }
    if (const auto* credit = std::get_if<wire::StreamCredit>(&*message)) {
      return on_credit(peer, *credit);
    }
    if (const auto* probe = std::get_if<wire::CallProbe>(&*message)) return on_probe(peer, *probe);
    if (std::holds_alternative<wire::Draining>(*message)) return on_draining(peer);
    if (const auto* taken = std::get_if<wire::ReferencesTaken>(&*message)) {
      return on_taken(peer, *taken);
    }
  }
  // Not of this protocol, or out of turn: nothing it says later can be trusted.
  on_close(peer);
}

void CallServer::lend(const QueuedCall& call, std::vector<std::shared_ptr<const void>> kept,
                      std::uint64_t item) {
  if (call.items) return call.items->keep(call.sequence, std::move(kept));
  MutexLock lock(mutex_);
  lent_[{call.caller, call.sequence, item}] = {std::move(kept), loop_.clock().now() + kLentTime};
  if (std::exchange(dropping_lent_, true)) return;
  loop_.call_after(kLentTime, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->drop_lent();
  });
}

void CallServer::on_taken(const std::shared_ptr<Peer>& peer, const wire::ReferencesTaken& taken) {
  Lent gone;  // goes without the lock
  MutexLock lock(mutex_);
  const auto lent = lent_.find({peer->caller, taken.sequence, taken.item});
  if (lent == lent_.end()) return;
  gone = std::move(lent->second);
  lent_.erase(lent);
}

// What was not taken in time: its caller has gone, or never had the answer.
void CallServer::drop_lent() {
  std::vector<Lent> gone;
  MutexLock lock(mutex_);
  const TimePoint now = loop_.clock().now();
  for (auto it = lent_.begin(); it != lent_.end();) {
    if (it->second.until > now) {
      ++it;
      continue;
    }
    gone.push_back(std::move(it->second));
    it = lent_.erase(it);
  }
  dropping_lent_ = !lent_.empty();
  if (!dropping_lent_) return;
  loop_.call_after(kLentTime, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->drop_lent();
  });
}

void CallServer::on_close(const std::shared_ptr<Peer>& peer) {
  const auto alive = peer;  // the connection's handlers may be its last owners
  peers_.erase(alive);
  alive->connection().close();
  if (!alive->bound) return;
  if (const auto ring = ring_of(alive)) detach_ring(ring);
  std::optional<CalleeSession::Change> change;
  {
    MutexLock lock(mutex_);
    change = session_.unbind(alive->caller, *alive, loop_.clock().now());
    count_held_back_locked();
  }
  if (change) carry_out(std::move(*change), alive->caller);
}

void CallServer::on_bind(const std::shared_ptr<Peer>& peer, const wire::Bind& bind) {
  CalleeSession::Introduction introduction;
  std::shared_ptr<Peer> before;
  {
    MutexLock lock(mutex_);
    introduction = session_.introduce(bind);
    if (!introduction.refusal.ok()) session_.refuse(*peer, introduction.refusal);
    before = peer_of_locked(bind.caller);
  }
  for (const auto& older : introduction.older) on_close(std::static_pointer_cast<Peer>(older));
  if (introduction.superseded && on_superseded_) on_superseded_(introduction.refusal);
  if (!introduction.refusal.ok()) return;
  // What the caller said on the connection before comes first.
  if (before) {
    if (const auto ring = ring_of(before)) detach_ring(ring);
  }
  peer->bound = true;
  peer->caller = bind.caller;
  peer->ring_number = bind.attempt;
  CalleeSession::Change change;
  {
    MutexLock lock(mutex_);
    change = session_.bind(peer, bind, std::move(introduction.methods));
    count_held_back_locked();
  }
  if (const auto replaced = std::dynamic_pointer_cast<Peer>(std::move(change.replaced))) {
    peers_.erase(replaced);
    replaced->connection().close();
  }
  carry_out(std::move(change), bind.caller);
}

void CallServer::carry_out(CalleeSession::Change change, ClientId caller) {
  for (auto& stop : change.stops) stop.request_stop();
  const auto held = change.may_begin ? held_.lock() : nullptr;
  if (held) held->caller_reads(caller);
}

std::shared_ptr<CallServer::Peer> CallServer::peer_of_locked(ClientId caller) const {
  return std::dynamic_pointer_cast<Peer>(session_.link(caller));  // or a pipeline's
}

// --- callers that do not read --------------------------------------------------------------------

void CallServer::on_drained(const std::shared_ptr<Peer>& peer) {
  bool may_begin = false;
  {
    MutexLock lock(mutex_);
    may_begin = session_.on_read(peer->caller, *peer);
    count_held_back_locked();
  }
  if (may_begin) carry_out({.replaced = nullptr, .stops = {}, .may_begin = true}, peer->caller);
}

void CallServer::count_held_back_locked() {
  held_back_count_.store(session_.held_back_count(), std::memory_order_release);
}

std::vector<ClientId> CallServer::held_back() {
  if (held_back_count_.load(std::memory_order_acquire) == 0) return {};
  MutexLock lock(mutex_);
  return session_.held_back();
}

bool CallServer::holds_back(ClientId caller) {
  if (held_back_count_.load(std::memory_order_acquire) == 0) return false;
  MutexLock lock(mutex_);
  return session_.holds_back(caller);
}

// --- calls ---------------------------------------------------------------------------------------

void CallServer::on_call(const std::shared_ptr<Peer>& peer, wire::Call call,
                         const Status& refused) {
  const auto timeout = std::clamp<std::int64_t>(call.timeout_us, 0, std::int64_t{1} << 52);
  QueuedCall queued{.caller = peer->caller,
                    .sequence = call.sequence,
                    .method = call.method,
                    .deadline = Deadline::after(std::chrono::microseconds(timeout), loop_.clock()),
                    .arguments = std::move(call.arguments),
                    .shared_arguments = {},
                    .ring = nullptr,
                    .keep_answer = true};
  const auto accept = [&] {
    auto admitted = admit(std::move(queued));
    if (!admitted) return;
    if (refused.ok()) {
      push(std::move(*admitted));
    } else {
      answer(*admitted, refused);
    }
  };
  std::shared_ptr<HostRing> ring;
  {
    MutexLock lock(mutex_);
    if (session_.link(peer->caller) != peer) return;
    ring = peer->ring;
    ++peer->calls;
  }
  if (!ring) return accept();
  MutexLock reading(ring->reading());
  pump(ring, kWholeRing);
  // Before the push that wakes the actor's thread: it must not find the ring still blocked, and
  // sleep. Nothing is read from the ring before reading() is let go.
  ring->count_socket_call();
  accept();
  // What waited for this call; where it was not admitted nobody has been woken.
  pump(ring, kWholeRing);
}

std::optional<QueuedCall> CallServer::admit(QueuedCall call) {
  CalleeSession::Admission admission;
  {
    MutexLock lock(mutex_);
    admission = session_.admit(call.caller, call.sequence, call.method, call.deadline.time(),
                               call.arguments);
    count_held_back_locked();
  }
  if (admission.verdict == CalleeSession::Verdict::kNothing) return std::nullopt;
  call.method = admission.method;
  if (admission.verdict == CalleeSession::Verdict::kRun) return call;
  answer(call, std::move(admission.refusal));
  return std::nullopt;
}

void CallServer::push(QueuedCall call) {
  QueuedCall head{.caller = call.caller,
                  .sequence = call.sequence,
                  .method = call.method,
                  .deadline = call.deadline,
                  .arguments = {},
                  .shared_arguments = {},
                  .ring = call.ring,
                  .items = call.items,
                  .keep_answer = call.keep_answer};
  const Status queued = mailbox_->push(std::move(call));
  if (queued.code() == Code::kUnavailable) return;  // stopping: the connection's end tells
  if (!queued.ok()) answer(head, queued);
}

void CallServer::answer(const QueuedCall& call, Result<wire::Bytes> result) {
  const std::uint64_t sequence = call.sequence;
  if (call.items) return give_item(call, std::move(result));
  const bool by_ring = call.ring && !call.by_socket;
  Reply reply;
  const bool is_large = by_ring && HostRing::is_large(result);
  LentResult lent;
  if (!by_ring) {
    reply = Reply(sequence, std::move(result), call.keep_answer);
  } else if (is_large) {
    lent = call.ring->lend(result);
    if (lent.there() && call.ring->begin_releasing()) release_results_later(loop_, call.ring);
  }
  MutexLock lock(mutex_);
  if (!session_.ended(call.caller, sequence)) return;
  // A caller that has a new connection learns it there, if it asks again.
  const bool sent =
      by_ring && !call.ring->detached() && call.ring->answer(sequence, result, std::move(lent));
  if (sent && !call.keep_answer) {
    if (is_large) give_back_large_buffer(std::move(*result));
    return;
  }
  if (by_ring) reply = Reply(sequence, std::move(result), call.keep_answer);
  // While more calls wait their answers leave together.
  session_.reply(call.caller, sequence, std::move(reply), sent, mailbox_->calls() > 0);
  count_held_back_locked();
}

void CallServer::give_item(const QueuedCall& call, Result<wire::Bytes> result) {
  MutexLock lock(mutex_);
  if (!session_.ended(call.caller, call.sequence)) return;
  call.items->give(call.sequence, result);
  if (!call.keep_answer) {
    if (result.ok()) give_back_large_buffer(std::move(*result));
    return;
  }
  session_.reply(call.caller, call.sequence, Reply(call.sequence, std::move(result), true),
                 /*sent=*/true, /*soon=*/false);
}

void CallServer::give_back(const QueuedCall& call) {
  MutexLock lock(mutex_);
  session_.give_back(call.caller, call.sequence, call.arguments);
}

// --- what else callers say -----------------------------------------------------------------------

std::shared_ptr<HostRing> CallServer::ring_of(const std::shared_ptr<Peer>& peer) {
  MutexLock lock(mutex_);
  return peer->ring;
}

// What a message over the socket concerns may be in the ring still.
void CallServer::read_whole_ring(const std::shared_ptr<Peer>& peer) {
  const std::shared_ptr<HostRing> ring = ring_of(peer);
  if (!ring) return;
  MutexLock reading(ring->reading());
  pump(ring, kWholeRing);
}

void CallServer::on_cancel(const std::shared_ptr<Peer>& peer, const wire::CancelCall& cancel) {
  read_whole_ring(peer);
  const auto held = held_.lock();
  if (!mailbox_->remove(peer->caller, cancel.sequence) &&
      !(held && held->remove(peer->caller, cancel.sequence))) {
    std::stop_source stop(std::nostopstate);
    {
      MutexLock lock(mutex_);
      stop = session_.stop_of(peer->caller, cancel.sequence);
    }
    stop.request_stop();  // runs what the call's method attached to it
    return;
  }
  answer({.caller = peer->caller,
          .sequence = cancel.sequence,
          .method = 0,
          .deadline = Deadline::at(TimePoint{}),
          .arguments = {},
          .shared_arguments = {},
          .ring = ring_of(peer),
          .keep_answer = true},
         error(Code::kCancelled, "the caller cancelled it"));
}

void CallServer::on_credit(const std::shared_ptr<Peer>& peer, const wire::StreamCredit& credit) {
  read_whole_ring(peer);
  bool open = false;
  {
    MutexLock lock(mutex_);
    open = session_.link(peer->caller) == peer && session_.on_credit(peer->caller, credit);
  }
  const auto held = open ? held_.lock() : nullptr;
  if (held) held->credit_changed(peer->caller, credit.sequence);
}

void CallServer::on_probe(const std::shared_ptr<Peer>& peer, const wire::CallProbe& probe) {
  read_whole_ring(peer);
  if (const auto held = held_.lock()) held->probed(peer->caller, probe);
}

// What it said before this is in its ring, or was read.
void CallServer::on_draining(const std::shared_ptr<Peer>& peer) {
  read_whole_ring(peer);
  peer->stopped = true;
}

// --- calls that run ------------------------------------------------------------------------------

std::stop_token CallServer::stop_token_of(ClientId caller, std::uint64_t sequence) {
  MutexLock lock(mutex_);
  return session_.stop_token_of(caller, sequence);
}

Status CallServer::send_item(const QueuedCall& call, std::uint64_t index, wire::Bytes item) {
  MutexLock lock(mutex_);
  Status sent = session_.send_item(call.caller, call.sequence, index, std::move(item));
  count_held_back_locked();
  return sent;
}

std::optional<std::uint64_t> CallServer::credit(const QueuedCall& call) {
  MutexLock lock(mutex_);
  return session_.credit(call.caller, call.sequence);
}

// --- exactly once over deaths --------------------------------------------------------------------

wire::Bytes CallServer::answered(const QueuedCall& call, const Result<wire::Bytes>& result,
                                 SavedAnswers which) {
  const RanCall ran{call.caller, call.sequence, result, call.keep_answer};
  AnsweredCalls answered;
  {
    MutexLock lock(mutex_);
    answered = session_.answered(ran, which, loop_.clock().now());
  }
  return encode_value(answered);
}

// (No bytes: they were saved before the class wanted it.)
Status CallServer::restore_answered(std::span<const std::byte> bytes) {
  std::vector<AnsweredCalls> saves;
  Decoder in(bytes);
  while (in.remaining() > 0) {
    if (!Codec<AnsweredCalls>::decode(in, saves.emplace_back())) return in.status();
  }
  MutexLock lock(mutex_);
  session_.restore_answered(std::move(saves), loop_.clock().now());
  return {};
}

// --- the end -------------------------------------------------------------------------------------

void CallServer::refuse_new(Status why) {
  read_rings();  // what was said before
  MutexLock lock(mutex_);
  session_.refuse_new(std::move(why));
}

void CallServer::give_back_new() {
  read_rings();  // what was said before
  MutexLock lock(mutex_);
  session_.give_back_new();
}

CallersProgress CallServer::callers_progress() const {
  CallersProgress progress{.stopped = true};
  for (const auto& peer : peers_) {
    if (peer->bound && !peer->stopped) progress.stopped = false;
    progress.received_bytes += peer->connection().received_bytes();
    progress.unsent_bytes += peer->connection().queued_bytes();
  }
  return progress;
}

void CallServer::read_rings() {
  Rings rings;
  {
    MutexLock lock(mutex_);
    rings = rings_;
  }
  for (const auto& ring : rings) {
    MutexLock reading(ring->reading());
    pump(ring, kWholeRing);
  }
}

std::size_t CallServer::open_calls() {
  MutexLock lock(mutex_);
  return session_.open_calls();
}

void CallServer::close(std::int64_t flush_ms, const std::function<void()>& on_closed) {
  for (auto& [number, socket] : std::exchange(offers_, {})) loop_.unwatch(socket.get());
  for (const auto& peer : std::exchange(peers_, {})) peer->connection().close(flush_ms, on_closed);
  MutexLock lock(mutex_);
  session_.clear();
  count_held_back_locked();
  rings_.clear();
  items_.clear();
  ring_count_ = 0;
  source_count_ = 0;
  ++rings_version_;
}

}  // namespace troupe::detail

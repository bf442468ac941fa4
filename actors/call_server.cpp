#include "actors/call_server.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "actors/serialize.h"
#include "runtime/base/limits.h"

namespace troupe::detail {
namespace {

// Callers that have no connection are remembered, up to so many.
constexpr std::size_t kDisconnectedSessionsMax = 1024;
// Actors of whose processes it is remembered which is the newest that has bound.
constexpr std::size_t kCallersRememberedMax = 4096;
constexpr std::uint32_t kNoMethod = ~0u;

wire::CallMessage reply_of(std::uint64_t sequence, Result<wire::Bytes> result) {
  wire::CallReply reply;
  reply.sequence = sequence;
  if (result.ok()) {
    reply.result = std::move(*result);
  } else {
    reply.status = result.status();
  }
  return reply;
}

// An answer as it is sent, and as it is kept for a caller whose connection breaks.
struct Reply {
  wire::EncodedCall sent;
  std::optional<wire::Bytes> kept;

  Reply() = default;
  Reply(std::uint64_t sequence, Result<wire::Bytes> result, bool keep) {
    const std::size_t bytes = result.ok() ? result->size() : 0;
    wire::CallMessage message = reply_of(sequence, std::move(result));
    if (keep && bytes <= KeptAnswers::kAnswerBytesMax) kept = wire::encode(message);
    if (kept && bytes < wire::kAttachedBytesMin) {
      sent.frame = *kept;
    } else {
      sent = wire::encode_attached(std::move(message));
    }
  }
};

// What is saved of a caller.
struct AnsweredCaller {
  ClientId caller;
  std::uint64_t highest = 0;  // every call up to this one has run, or will never be sent again
  std::map<std::uint64_t, wire::Bytes> answers;
};

}  // namespace

CallServer::CallServer(net::EventLoop& loop, ActorId actor_id, std::uint64_t generation,
                       ActorInterface interface, std::shared_ptr<Mailbox> mailbox,
                       std::shared_ptr<HostPageSegment> host_page,
                       const net::ConnectionOptions& connections)
    : loop_(loop),
      actor_id_(actor_id),
      generation_(generation),
      interface_(interface),
      mailbox_(std::move(mailbox)),
      host_page_(std::move(host_page)),
      connections_(connections),
      callers_(kCallersRememberedMax) {}

void CallServer::accept(ByteStream socket, const std::string& peer_name) {
  auto peer = std::make_shared<Peer>();
  peer->connection = net::make_connection(loop_, std::move(socket), peer_name, connections_);
  peers_.insert(peer);
  const std::weak_ptr<CallServer> weak = weak_from_this();
  peer->connection->start(
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
    if (const auto* bind = std::get_if<wire::Bind>(&*message)) {
      on_bind(peer, *bind);
      return;
    }
  } else if (message.ok()) {
    if (auto* call = std::get_if<wire::Call>(&*message)) {
      const auto& bytes = attachment.refused_bytes;
      on_call(peer, std::move(*call),
              bytes ? too_large_error("arguments", *bytes, connections_) : Status());
      return;
    }
    if (const auto* cancel = std::get_if<wire::CancelCall>(&*message)) {
      on_cancel(peer, *cancel);
      return;
    }
    if (const auto* credit = std::get_if<wire::StreamCredit>(&*message)) {
      on_credit(peer, *credit);
      return;
    }
    if (const auto* probe = std::get_if<wire::CallProbe>(&*message)) {
      on_probe(peer, *probe);
      return;
    }
    if (std::holds_alternative<wire::Draining>(*message)) {
      on_draining(peer);
      return;
    }
  }
  // Not of this protocol, or out of turn: nothing it says later can be trusted.
  on_close(peer);
}

void CallServer::on_close(const std::shared_ptr<Peer>& peer) {
  const auto alive = peer;  // the connection's handlers may be its last owners
  peers_.erase(alive);
  alive->connection->close();
  if (!alive->bound) return;
  std::shared_ptr<HostRoad> road;
  {
    MutexLock lock(mutex_);
    const auto it = sessions_.find(alive->caller);
    if (it == sessions_.end() || it->second.peer != alive) return;
    road = it->second.road;
  }
  if (road) detach_road(road);
  std::vector<std::stop_source> stops;
  bool reads = false;
  {
    MutexLock lock(mutex_);
    const auto it = sessions_.find(alive->caller);
    if (it == sessions_.end()) return;
    Session& session = it->second;
    stops = stops_of_streams_locked(session);
    reads = end_holding_back_locked(session);
    session.peer.reset();
    disconnected_.push_back(alive->caller);
    forget_old_sessions_locked();
  }
  for (auto& stop : stops) stop.request_stop();
  if (reads) tell_caller_reads(alive->caller);
}

void CallServer::forget_old_sessions_locked() {
  while (disconnected_.size() > kDisconnectedSessionsMax) {
    const auto it = sessions_.find(disconnected_.front());
    if (it != sessions_.end() && !it->second.peer) {
      kept_.forget(it->first);
      sessions_.erase(it);
    }
    disconnected_.pop_front();
  }
}

// --- binding -------------------------------------------------------------------------------------

// Methods that the two programs know differently are refused at their calls: the others work.
Result<CallServer::MethodNumbers> CallServer::translate(const wire::Bind& bind) const {
  if (bind.actor_id != actor_id_) {
    return error(Code::kNotFound, "this process hosts actor {}, not {}", actor_id_.brief(),
                 bind.actor_id.brief());
  }
  if (bind.type != interface_.type) {
    return error(Code::kInvalidArgument, "the actor is a {}, not a {}", interface_.type, bind.type);
  }
  MethodNumbers numbers;
  for (const auto& theirs : bind.methods) {
    const auto ours = std::find_if(interface_.methods.begin(), interface_.methods.end(),
                                   [&](const auto& m) { return m.name == theirs.name; });
    const bool known = ours != interface_.methods.end();
    const bool same = known && ours->hash == theirs.hash;
    if (!same) {
      numbers.refused.emplace(
          static_cast<std::uint32_t>(numbers.ours.size()),
          error(Code::kFailedPrecondition,
                "the caller's and the actor's program differ: {}::{} {}. Build both from the same "
                "sources",
                bind.type, theirs.name,
                known ? "has other argument or result types, or they contain something else"
                      : "is unknown to the actor")
              .with(kInActorsProgram, known ? ours->type : "no such method"));
    }
    numbers.ours.push_back(same ? static_cast<std::uint32_t>(ours - interface_.methods.begin())
                                : kNoMethod);
  }
  return numbers;
}

// An actor may have two processes after its node was lost (OnHeadLoss::kKeep); only the newer one
// counts. kUnavailable: this process is the older one. kAborted: the caller is.
Status CallServer::check_generations(const wire::Bind& bind) {
  if (bind.actor_id != actor_id_) return {};
  if (bind.generation > generation_) {
    return error(Code::kUnavailable,
                 "this is process {} of actor {}, and a caller knows process {}: its node was lost "
                 "to the head, and it was started again elsewhere",
                 generation_, actor_id_.brief(), bind.generation);
  }
  if (bind.caller_actor.empty()) return {};
  const std::uint64_t newest = callers_.note(bind.caller_actor, bind.caller_generation);
  if (bind.caller_generation < newest) {
    return error(Code::kAborted,
                 "process {} of actor {} calls, and process {} has called already: its node was "
                 "lost to the head, and it was started again elsewhere",
                 bind.caller_generation, bind.caller_actor.brief(), newest);
  }
  end_older_callers(bind.caller_actor, bind.caller_generation);
  return {};
}

// Closes the connections of the actor's older processes. They find out why when they bind again.
void CallServer::end_older_callers(ActorId actor, std::uint64_t generation) {
  std::vector<std::shared_ptr<Peer>> older;
  {
    MutexLock lock(mutex_);
    for (const auto& [caller, session] : sessions_) {
      if (session.peer && session.actor == actor && session.actor_generation < generation) {
        older.push_back(session.peer);
      }
    }
  }
  for (const auto& peer : older) on_close(peer);
}

void CallServer::on_bind(const std::shared_ptr<Peer>& peer, const wire::Bind& bind) {
  wire::BindReply reply;
  reply.generation = generation_;
  const Status current = check_generations(bind);
  auto methods = current.ok() ? translate(bind) : Result<MethodNumbers>(current);
  if (!methods.ok()) {
    reply.status = methods.status();
    send_small(peer, std::move(reply));
    if (current.code() == Code::kUnavailable && on_superseded_) on_superseded_(current);
    return;
  }
  std::shared_ptr<HostRoad> old_road;
  {
    MutexLock lock(mutex_);
    if (const auto it = sessions_.find(bind.caller); it != sessions_.end()) {
      old_road = it->second.road;
    }
  }
  // What the caller said on the connection before comes first.
  if (old_road) detach_road(old_road);
  std::shared_ptr<Peer> replaced;
  std::vector<std::stop_source> stops;
  bool reads = false;
  peer->bound = true;
  peer->caller = bind.caller;
  {
    MutexLock lock(mutex_);
    Session& session = sessions_[bind.caller];
    replaced = std::exchange(session.peer, peer);
    session.methods = std::move(*methods);
    session.actor = bind.caller_actor;
    session.actor_generation = bind.caller_generation;
    std::erase(disconnected_, bind.caller);
    stops = stops_of_streams_locked(session);
    reads = end_holding_back_locked(session);  // on the connection before
    // Under the lock, so that no answer of an earlier connection's calls comes before it.
    send_small(peer, std::move(reply));
    if (gives_back_) send_small(peer, wire::Draining{});
  }
  if (replaced) {
    peers_.erase(replaced);
    replaced->connection->close();
  }
  for (auto& stop : stops) stop.request_stop();
  if (reads) tell_caller_reads(bind.caller);
}

// --- callers that do not read --------------------------------------------------------------------

// Small messages have room on every connection that is of use: one without is ended, which its
// caller notices. One that has ended says so by itself.
void CallServer::send_small(const std::shared_ptr<Peer>& peer, const wire::CallMessage& message) {
  (void)send_to(peer, {wire::encode(message), nullptr}, false);
}

// `soon`: it may wait for others that follow.
Status CallServer::send_to(const std::shared_ptr<Peer>& peer, wire::EncodedCall message,
                           bool soon) {
  net::Connection& connection = *peer->connection;
  const Status sent = message.attachment
                          ? connection.send(std::move(message.frame), std::move(message.attachment))
                          : (soon ? connection.send_soon(std::move(message.frame))
                                  : connection.send(std::move(message.frame)));
  if (sent.ok() || sent.code() == Code::kUnavailable) return sent;
  loop_.post([weak = weak_from_this(), peer] {
    if (const auto self = weak.lock()) self->on_close(peer);
  });
  return sent;
}

// A caller without a connection asks again on its next one.
void CallServer::send_answer_locked(Session& session, wire::EncodedCall answer) {
  if (!session.peer) return;
  // While more calls wait their answers leave together.
  const Status sent = send_to(session.peer, std::move(answer), mailbox_->calls() > 0);
  if (sent.ok()) hold_back_locked(session);
}

void CallServer::hold_back_locked(Session& session) {
  const std::size_t unread_bytes_max = 2 * connections_.low_water_bytes;
  if (session.held_back || session.peer->connection->queued_bytes() <= unread_bytes_max) return;
  session.held_back = true;
  ++held_back_count_;
}

bool CallServer::end_holding_back_locked(Session& session) {
  if (!std::exchange(session.held_back, false)) return false;
  --held_back_count_;
  return true;
}

void CallServer::on_drained(const std::shared_ptr<Peer>& peer) {
  {
    MutexLock lock(mutex_);
    const auto it = sessions_.find(peer->caller);
    if (it == sessions_.end() || it->second.peer != peer) return;
    if (!end_holding_back_locked(it->second)) return;
  }
  tell_caller_reads(peer->caller);
}

void CallServer::tell_caller_reads(ClientId caller) {
  if (const auto held = held_.lock()) held->caller_reads(caller);
}

std::vector<ClientId> CallServer::held_back() {
  std::vector<ClientId> callers;
  if (held_back_count_.load(std::memory_order_acquire) == 0) return callers;
  MutexLock lock(mutex_);
  for (const auto& [caller, session] : sessions_) {
    if (session.held_back) callers.push_back(caller);
  }
  return callers;
}

bool CallServer::holds_back(ClientId caller) {
  if (held_back_count_.load(std::memory_order_acquire) == 0) return false;
  MutexLock lock(mutex_);
  const auto it = sessions_.find(caller);
  return it != sessions_.end() && it->second.held_back;
}

// --- calls ---------------------------------------------------------------------------------------

void CallServer::on_call(const std::shared_ptr<Peer>& peer, wire::Call call,
                         const Status& refused) {
  std::shared_ptr<HostRoad> road;
  {
    MutexLock lock(mutex_);
    const auto it = sessions_.find(peer->caller);
    if (it == sessions_.end() || it->second.peer != peer) return;
    road = it->second.road;
  }
  ++peer->calls;
  const auto timeout = std::clamp<std::int64_t>(call.timeout_us, 0, std::int64_t{1} << 52);
  QueuedCall queued{.caller = peer->caller,
                    .sequence = call.sequence,
                    .method = call.method,
                    .deadline = Deadline::after(std::chrono::microseconds(timeout), loop_.clock()),
                    .arguments = std::move(call.arguments),
                    .shared_arguments = {},
                    .road = nullptr,
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
  if (!road) return accept();
  MutexLock reading(road->reading());
  pump(road, kWholeRing);
  // Before the push that wakes the actor's thread: it must not find the ring still blocked, and
  // sleep. Nothing is read from the ring before reading() is let go.
  road->count_socket_call();
  accept();
  // What waited for this call; where it was not admitted nobody has been woken.
  pump(road, kWholeRing);
}

std::optional<QueuedCall> CallServer::admit(QueuedCall call) {
  const std::uint32_t said = call.method;
  call.method = kNoMethod;
  Status no_method;
  {
    MutexLock lock(mutex_);
    const auto it = sessions_.find(call.caller);
    if (it == sessions_.end()) return std::nullopt;
    Session& session = it->second;
    const std::uint64_t sequence = call.sequence;
    if (sequence <= session.highest) {  // sent again
      if (std::binary_search(session.open.begin(), session.open.end(), sequence)) {
        return std::nullopt;
      }
      const wire::Bytes* const answer = kept_.find(call.caller, sequence);
      send_answer_locked(
          session, {answer != nullptr
                        ? *answer
                        : wire::encode(reply_of(
                              sequence, error(Code::kUnavailable,
                                              "the call ran before its connection broke, and its "
                                              "answer is no longer kept"))),
                    nullptr});
      return std::nullopt;
    }
    // It has not run, and its number is free for the next process.
    if (gives_back_) {
      give_back_locked(session, call);
      return std::nullopt;
    }
    if (said < session.methods.ours.size()) call.method = session.methods.ours[said];
    if (call.method == kNoMethod) {
      const auto refused = session.methods.refused.find(said);
      no_method = refused != session.methods.refused.end()
                      ? refused->second
                      : error(Code::kProtocol, "there is no method {}", said);
    }
    session.highest = sequence;
    session.open.push_back(sequence);
  }
  if (refuses_.load(std::memory_order_relaxed)) {
    answer(call, refusal());
    return std::nullopt;
  }
  if (call.method == kNoMethod) {
    answer(call, std::move(no_method));
    return std::nullopt;
  }
  return call;
}

void CallServer::push(QueuedCall call) {
  QueuedCall head{.caller = call.caller,
                  .sequence = call.sequence,
                  .method = call.method,
                  .deadline = call.deadline,
                  .arguments = {},
                  .shared_arguments = {},
                  .road = call.road,
                  .keep_answer = call.keep_answer};
  const Status queued = mailbox_->push(std::move(call));
  if (queued.code() == Code::kUnavailable) return;  // stopping: the connection's end tells
  if (!queued.ok()) answer(head, queued);
}

// What a message over the socket concerns may be in the ring still.
void CallServer::read_whole_ring(const std::shared_ptr<Peer>& peer) {
  std::shared_ptr<HostRoad> road;
  {
    MutexLock lock(mutex_);
    const auto it = sessions_.find(peer->caller);
    if (it != sessions_.end()) road = it->second.road;
  }
  if (!road) return;
  MutexLock reading(road->reading());
  pump(road, kWholeRing);
}

void CallServer::on_cancel(const std::shared_ptr<Peer>& peer, const wire::CancelCall& cancel) {
  read_whole_ring(peer);
  const auto held = held_.lock();
  if (!mailbox_->remove(peer->caller, cancel.sequence) &&
      !(held && held->remove(peer->caller, cancel.sequence))) {
    request_stop(peer->caller, cancel.sequence);
    return;
  }
  std::shared_ptr<HostRoad> road;
  {
    MutexLock lock(mutex_);
    const auto it = sessions_.find(peer->caller);
    if (it != sessions_.end()) road = it->second.road;
  }
  answer({.caller = peer->caller,
          .sequence = cancel.sequence,
          .method = 0,
          .deadline = Deadline::at(TimePoint{}),
          .arguments = {},
          .shared_arguments = {},
          .road = road,
          .keep_answer = true},
         error(Code::kCancelled, "the caller cancelled it"));
}

// --- calls that run ------------------------------------------------------------------------------

std::stop_source& CallServer::stop_of_locked(Session& session, std::uint64_t sequence) {
  for (auto& [number, stop] : session.stops) {
    if (number == sequence) return stop;
  }
  return session.stops.emplace_back(sequence, std::stop_source()).second;
}

// Of a connection that is over: nobody takes what its streams give.
std::vector<std::stop_source> CallServer::stops_of_streams_locked(Session& session) {
  std::vector<std::stop_source> stops;
  for (const auto& [sequence, items] : session.credits) {
    stops.push_back(stop_of_locked(session, sequence));
  }
  return stops;
}

std::stop_token CallServer::stop_token_of(ClientId caller, std::uint64_t sequence) {
  MutexLock lock(mutex_);
  const auto it = sessions_.find(caller);
  if (it == sessions_.end()) return {};
  const auto& open = it->second.open;
  if (!std::binary_search(open.begin(), open.end(), sequence)) return {};
  return stop_of_locked(it->second, sequence).get_token();
}

void CallServer::request_stop(ClientId caller, std::uint64_t sequence) {
  std::stop_source stop(std::nostopstate);
  {
    MutexLock lock(mutex_);
    const auto it = sessions_.find(caller);
    if (it == sessions_.end()) return;
    const auto& open = it->second.open;
    if (!std::binary_search(open.begin(), open.end(), sequence)) return;  // answered meanwhile
    stop = stop_of_locked(it->second, sequence);
  }
  stop.request_stop();  // runs what the call's method attached to it
}

void CallServer::on_credit(const std::shared_ptr<Peer>& peer, const wire::StreamCredit& credit) {
  read_whole_ring(peer);
  {
    MutexLock lock(mutex_);
    const auto it = sessions_.find(peer->caller);
    if (it == sessions_.end() || it->second.peer != peer) return;
    const auto& open = it->second.open;
    if (!std::binary_search(open.begin(), open.end(), credit.sequence)) return;
    std::uint64_t& items = it->second.credits[credit.sequence];
    items = std::max(items, credit.items);
  }
  if (const auto held = held_.lock()) held->credit_changed(peer->caller, credit.sequence);
}

void CallServer::on_probe(const std::shared_ptr<Peer>& peer, const wire::CallProbe& probe) {
  read_whole_ring(peer);
  if (const auto held = held_.lock()) held->probed(peer->caller, probe);
}

Status CallServer::send_item(const QueuedCall& call, std::uint64_t index, wire::Bytes item) {
  wire::EncodedCall message =
      wire::encode_attached(wire::StreamItem{call.sequence, index, std::move(item)});
  MutexLock lock(mutex_);
  const auto it = sessions_.find(call.caller);
  if (it == sessions_.end() || !it->second.peer) {
    return Status(Code::kUnavailable, "the stream's caller is gone");
  }
  Status sent = send_to(it->second.peer, std::move(message), false);
  if (sent.ok()) hold_back_locked(it->second);
  return sent;
}

std::uint64_t CallServer::credit(const QueuedCall& call) {
  MutexLock lock(mutex_);
  const auto it = sessions_.find(call.caller);
  if (it == sessions_.end()) return 0;
  const auto credit = it->second.credits.find(call.sequence);
  return credit != it->second.credits.end() ? credit->second : 0;
}

void CallServer::answer(const QueuedCall& call, Result<wire::Bytes> result) {
  const std::uint64_t sequence = call.sequence;
  const bool by_ring = call.road && !call.by_socket;
  Reply reply;
  if (!by_ring) reply = Reply(sequence, std::move(result), call.keep_answer);
  MutexLock lock(mutex_);
  const auto it = sessions_.find(call.caller);
  if (it == sessions_.end()) return;
  Session& session = it->second;
  const auto open = std::lower_bound(session.open.begin(), session.open.end(), sequence);
  if (open != session.open.end() && *open == sequence) session.open.erase(open);
  if (!session.stops.empty()) {
    std::erase_if(session.stops, [&](const auto& stop) { return stop.first == sequence; });
  }
  if (!session.credits.empty()) session.credits.erase(sequence);
  // A caller that has a new connection learns it there, if it asks again.
  const bool sent = by_ring && session.road == call.road && call.road->answer(sequence, result);
  if (sent && !call.keep_answer) return;
  if (by_ring) reply = Reply(sequence, std::move(result), call.keep_answer);
  if (reply.kept) kept_.add(call.caller, sequence, std::move(*reply.kept));
  if (!sent) send_answer_locked(session, std::move(reply.sent));
}

// --- exactly once over deaths --------------------------------------------------------------------

wire::Bytes CallServer::answered(const QueuedCall& call, const Result<wire::Bytes>& result) {
  const wire::Bytes frame = wire::encode(reply_of(call.sequence, Result<wire::Bytes>(result)));
  std::vector<AnsweredCaller> callers;
  MutexLock lock(mutex_);
  callers.reserve(sessions_.size());
  for (const auto& [caller, session] : sessions_) {
    // A caller's calls run in order: what is open has not run, but for the one that just has.
    auto open = session.open.begin();
    const bool own = caller == call.caller;
    if (own && open != session.open.end() && *open == call.sequence) ++open;
    const std::uint64_t highest = open != session.open.end() ? *open - 1 : session.highest;
    if (highest == 0) continue;
    auto& saved = callers.emplace_back(AnsweredCaller{caller, highest, {}});
    if (own && frame.size() <= KeptAnswers::kAnswerBytesMax) {
      saved.answers.emplace(call.sequence, frame);
    }
  }
  kept_.for_saved([&](ClientId caller, std::uint64_t sequence, const wire::Bytes& answer) {
    const auto saved =
        std::lower_bound(callers.begin(), callers.end(), caller,
                         [](const AnsweredCaller& c, ClientId id) { return c.caller < id; });
    if (saved == callers.end() || saved->caller != caller) return;
    // Those above were refused without running.
    if (sequence <= saved->highest) saved->answers.emplace(sequence, answer);
  });
  return encode_value(callers);
}

Status CallServer::restore_answered(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};  // saved before the class wanted it
  auto callers = TROUPE_TRY(decode_value<std::vector<AnsweredCaller>>(bytes, DecodeContext{}));
  MutexLock lock(mutex_);
  for (auto& saved : callers) {
    sessions_[saved.caller].highest = saved.highest;
    for (auto& [sequence, frame] : saved.answers) {
      kept_.add(saved.caller, sequence, std::move(frame));
    }
    disconnected_.push_back(saved.caller);
  }
  return {};
}

// --- the end -------------------------------------------------------------------------------------

void CallServer::refuse_new(Status why) {
  read_roads();  // what was said before
  {
    MutexLock lock(mutex_);
    if (refusal_.ok()) refusal_ = std::move(why);
  }
  refuses_.store(true);
}

// A connection that does not take what follows ends, and its end says the same.
void CallServer::give_back_new() {
  read_roads();  // what was said before
  MutexLock lock(mutex_);
  if (std::exchange(gives_back_, true)) return;
  for (const auto& [caller, session] : sessions_) {
    if (!session.peer) continue;
    send_small(session.peer, wire::Draining{});
  }
}

void CallServer::give_back_locked(const Session& session, const QueuedCall& call) {
  if (!session.peer) return;
  // (What lies in the caller's own memory stays there until the call has an answer.)
  (void)send_to(session.peer,
                wire::encode_attached(wire::CallGivenBack{call.sequence, call.arguments}), false);
}

void CallServer::give_back(const QueuedCall& call) {
  MutexLock lock(mutex_);
  const auto it = sessions_.find(call.caller);
  if (it != sessions_.end()) give_back_locked(it->second, call);
}

// What it said before this is in its ring, or was read.
void CallServer::on_draining(const std::shared_ptr<Peer>& peer) {
  read_whole_ring(peer);
  peer->stopped = true;
}

bool CallServer::callers_stopped() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const auto& peer) { return peer->stopped || !peer->bound; });
}

Status CallServer::refusal() {
  MutexLock lock(mutex_);
  return refusal_;
}

void CallServer::read_roads() {
  Roads roads;
  {
    MutexLock lock(mutex_);
    roads = roads_;
  }
  for (const auto& road : roads) {
    MutexLock reading(road->reading());
    pump(road, kWholeRing);
  }
}

std::size_t CallServer::open_calls() {
  MutexLock lock(mutex_);
  std::size_t count = 0;
  for (const auto& [caller, session] : sessions_) count += session.open.size();
  return count;
}

void CallServer::close(std::int64_t flush_ms, const std::function<void()>& on_closed) {
  for (auto& [number, socket] : std::exchange(offers_, {})) loop_.unwatch(socket.get());
  for (const auto& peer : std::exchange(peers_, {})) peer->connection->close(flush_ms, on_closed);
  MutexLock lock(mutex_);
  sessions_.clear();
  held_back_count_ = 0;
  roads_.clear();
  road_count_ = 0;
  ++roads_version_;
}

}  // namespace troupe::detail

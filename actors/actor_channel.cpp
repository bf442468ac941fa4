#include "actors/actor_channel.h"

#include <chrono>
#include <utility>

#include "runtime/base/large_buffers.h"

namespace troupe::detail {
namespace {

constexpr Duration kConnectTimeout = std::chrono::seconds(5);
// What listens on a local socket answers soon, or is stopped.
constexpr Duration kLocalConnectTimeout = std::chrono::seconds(1);

}  // namespace

net::Address ChannelEnvironment::address_of(const NodeId& node,
                                            const wire::Endpoint& endpoint) const {
  net::Address address{endpoint.host, endpoint.port, {}};
  if (!node_id.empty() && node_id == node) address.local_name = endpoint.local_name;
  return address;
}

ActorChannel::ActorChannel(std::shared_ptr<const ChannelEnvironment> environment, ActorId actor_id,
                           ActorInterface interface, ClientId caller)
    : environment_(std::move(environment)),
      config_{.actor_id = actor_id,
              .interface = interface,
              .caller = caller,
              .self = environment_->self,
              .self_generation = environment_->self_generation},
      session_(config_) {}

ActorChannel::~ActorChannel() {
  if (!forked()) return;
  // Closing it here would end it for the parent.
  MutexLock lock(mutex_);
  keep_forked(new auto(session_.link()));
}

// --- events --------------------------------------------------------------------------------------

template <typename Event>
void ActorChannel::apply(Event event) {
  std::vector<EndedCall> ended;
  std::optional<CallerOutcome> rest;
  {
    MutexLock lock(mutex_);
    event(session_, outcome_);
    arm_locked();
    ended.swap(outcome_.ended);
    if (!outcome_.empty()) rest.emplace(std::exchange(outcome_, {}));
  }
  if (rest) carry_out(std::move(*rest));
  answer(std::move(ended));
}

void ActorChannel::carry_out(CallerOutcome out) {
  if (out.find) {
    environment_->loop->post([self = shared_from_this()] { self->find(); });
  }
  if (out.stop_finding) {
    Directory::WatchId watch = 0;
    {
      MutexLock lock(mutex_);
      watch = std::exchange(watch_, 0);
    }
    if (watch != 0) environment_->directory->unwatch(watch);
  }
  if (!out.superseded.ok() && environment_->on_superseded) {
    environment_->on_superseded(out.superseded);
  }
  for (const auto& link : out.closed) link->close();
  if (out.connect) connect(*out.connect);
  if (out.item_sink) out.item_sink->item(out.item.index, out.item.item);
}

void ActorChannel::answer(std::vector<EndedCall> ended) const {
  if (ended.empty()) return;
  for (auto& [request, result] : ended) {
    request.sink.answer(result.status(), result.ok() ? std::span<const std::byte>(*result)
                                                     : std::span<const std::byte>());
    if (result.ok()) give_back_large_buffer(std::move(*result));
  }
  // A thread that waits for one of them may sleep at the ring.
  if (const auto link = this->link()) link->nudge();
}

std::shared_ptr<ChannelLink> ActorChannel::link() const {
  MutexLock lock(mutex_);
  return std::static_pointer_cast<ChannelLink>(session_.link());
}

// --- calls ---------------------------------------------------------------------------------------

std::uint64_t ActorChannel::call(CallRequest request) {
  if (forked()) [[unlikely]] {
    request.sink.answer(ProcessStamp::forked_error(), {});
    return 0;
  }
  std::uint64_t sequence = 0;
  apply([&](CallerSession& session, CallerOutcome& out) {
    sequence = session.call(std::move(request), out);
  });
  return sequence;
}

void ActorChannel::cancel(std::uint64_t sequence) {
  if (forked()) return;
  std::optional<CallRequest> dropped;  // let go outside the lock
  std::shared_ptr<ChannelLink> link;
  {
    MutexLock lock(mutex_);
    dropped = session_.cancel(sequence);
    link = std::static_pointer_cast<ChannelLink>(session_.link());
  }
  if (dropped && link) link->nudge();
}

void ActorChannel::send_probe(wire::CallProbe probe) {
  if (forked()) return;
  MutexLock lock(mutex_);
  session_.send_probe(std::move(probe));
}

void ActorChannel::references_taken(std::uint64_t sequence, std::uint64_t item) {
  if (forked()) return;
  // Where there is no connection now, the actor lets go of them after a while.
  if (const auto link = this->link()) {
    (void)link->send(wire::CallMessage(wire::ReferencesTaken{sequence, item}));
  }
}

void ActorChannel::allow_items(std::uint64_t sequence, std::uint64_t items) {
  if (forked()) return;
  MutexLock lock(mutex_);
  session_.allow_items(sequence, items);
}

void ActorChannel::read_answers(Deadline deadline, const std::function<bool()>& ended) {
  if (forked()) return;
  if (const auto link = this->link()) link->read_answers(*this, deadline, ended);
}

std::optional<Status> ActorChannel::late(std::uint64_t sequence, const char* what) const {
  MutexLock lock(mutex_);
  return session_.late(sequence, what, environment_->loop->clock().now());
}

Status ActorChannel::placed(std::uint64_t sequence, Status why) const {
  MutexLock lock(mutex_);
  return session_.placed(sequence, std::move(why));
}

std::optional<SlabLease> ActorChannel::take_slab(std::size_t bytes) {
  const auto link = forked() ? nullptr : this->link();
  return link ? link->take_slab(bytes) : std::nullopt;
}

// --- time ----------------------------------------------------------------------------------------

void ActorChannel::arm_locked() {
  const std::optional<TimePoint> next = session_.next_time();
  if (!next) return disarm_locked();
  if (armed_ && *armed_ <= *next) return;
  disarm_locked();
  armed_ = next;
  net::EventLoop& loop = *environment_->loop;
  timer_ =
      loop.call_after(Deadline::at(*next).remaining(loop.clock().now()), [weak = weak_from_this()] {
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
  // What the actor has answered in time counts, whoever reads it.
  if (const auto link = this->link()) link->read_ring(*this);
  const TimePoint now = environment_->loop->clock().now();
  apply([&](CallerSession& session, CallerOutcome& out) TROUPE_NO_ANALYSIS {
    if (armed_ && *armed_ <= now) {
      armed_.reset();
      timer_ = 0;
    }
    session.on_time(now, out);
  });
}

// --- finding and connecting ----------------------------------------------------------------------

void ActorChannel::find() {
  const auto watch = environment_->directory->watch(
      actor_id(), "", [weak = weak_from_this()](const Result<wire::ActorInfo>& info) {
        const auto self = weak.lock();
        if (!self) return;
        self->apply([&](CallerSession& session, CallerOutcome& out) TROUPE_NO_ANALYSIS {
          // The watch has ended with the actor.
          if (info.ok() && info->state == wire::ActorState::kDead) self->watch_ = 0;
          session.on_actor(info, self->environment_->loop->clock().now(), out);
        });
      });
  MutexLock lock(mutex_);
  watch_ = watch;
}

void ActorChannel::connect(const CallerOutcome::Connect& to) {
  const net::Address address = environment_->address_of(to.node_id, to.endpoint);
  if (!environment_->tries_local || to.endpoint.local_name.empty()) return connect_by(to, address);
  net::Address local = address;
  local.local_name = to.endpoint.local_name;
  connect_by(to, local, address);
}

void ActorChannel::connect_by(const CallerOutcome::Connect& to, const net::Address& address,
                              std::optional<net::Address> otherwise) {
  net::EventLoop& loop = *environment_->loop;
  net::connect(loop, address, "actor/" + actor_id().to_string(), environment_->token,
               Deadline::after(otherwise ? kLocalConnectTimeout : kConnectTimeout, loop.clock()),
               [weak = weak_from_this(), to, address, otherwise](Result<ByteStream> socket) {
                 const auto self = weak.lock();
                 if (!self) return;
                 if (!socket.ok() && otherwise) return self->connect_by(to, *otherwise);
                 self->on_connected(to, address, std::move(socket));
               });
}

void ActorChannel::on_connected(const CallerOutcome::Connect& to, const net::Address& address,
                                Result<ByteStream> socket) {
  std::shared_ptr<ChannelLink> link;
  Result<std::shared_ptr<CallLink>> made = std::shared_ptr<CallLink>();
  if (!socket.ok()) {
    made = socket.status();
  } else {
    link = std::make_shared<ChannelLink>(weak_from_this(), environment_, to.attempt, address,
                                         std::move(*socket), "actor " + actor_id().brief());
    link->start();
    made = std::shared_ptr<CallLink>(link);
  }
  bool wanted = false;
  apply([&](CallerSession& session, CallerOutcome& out) {
    wanted =
        session.on_connected(to.attempt, std::move(made), environment_->loop->clock().now(), out);
  });
  if (!wanted && link) link->close();
}

// --- what links say ------------------------------------------------------------------------------

void ActorChannel::on_frame(ChannelLink& link, std::span<const std::byte> frame,
                            net::Attachment&& attachment) {
  auto message = wire::decode_call(frame, std::move(attachment.bytes));
  std::optional<TooLarge> too_large;
  if (attachment.refused_bytes) {
    too_large = {*attachment.refused_bytes, environment_->connections.attachment_bytes_max};
  }
  auto* const reply = message.ok() ? std::get_if<wire::CallReply>(&*message) : nullptr;
  bool open = false;
  const std::size_t bytes = reply != nullptr ? reply->result.size() : 0;
  apply([&](CallerSession& session, CallerOutcome& out) {
    if (reply != nullptr && !too_large) {
      session.on_reply(link.attempt(), std::move(*reply), out);
    } else if (message.ok()) {
      session.on_message(link.attempt(), std::move(*message), too_large,
                         environment_->loop->clock().now(), out);
    } else {
      session.on_nonsense(message.status(), out);
    }
    open = session.open();
  });
  if (reply != nullptr && open) link.count_answer(bytes);
}

void ActorChannel::on_writable(const ChannelLink& link) {
  apply([&](CallerSession& session, CallerOutcome& out) {
    session.on_writable(link.attempt(), out);
  });
}

void ActorChannel::on_ended(ChannelLink& link, const Status& why) {
  link.read_ring(*this);  // what the process answered before its end is there still
  apply([&](CallerSession& session, CallerOutcome& out) {
    session.on_ended(link.attempt(), why, environment_->loop->clock().now(), out);
  });
}

void ActorChannel::on_ring_result(std::uint64_t sequence, std::span<const std::byte> result,
                                  Continuations& later) {
  std::optional<CallRequest> request = [&] {  // let go outside the lock
    MutexLock lock(mutex_);
    return session_.on_result(sequence);
  }();
  if (request) request->sink.answer(Status(), result, &later);
}

void ActorChannel::on_ring_error(std::uint64_t sequence, Status why, Continuations& later) {
  CallerOutcome out;
  {
    MutexLock lock(mutex_);
    session_.on_error(sequence, std::move(why), out);
  }
  for (auto& [request, result] : out.ended) request.sink.answer(result.status(), {}, &later);
}

// --- the end -------------------------------------------------------------------------------------

void ActorChannel::fail_waiting(const Status& why) {
  apply([&](CallerSession& session, CallerOutcome& out) { session.fail_waiting(why, out); });
}

void ActorChannel::fail(const Status& why) {
  apply([&](CallerSession& session, CallerOutcome& out) { session.fail(why, out); });
}

void ActorChannel::close(const Status& why) {
  if (forked()) return;
  apply([&](CallerSession& session, CallerOutcome& out) { session.close(why, out); });
}

bool ActorChannel::used() const {
  MutexLock lock(mutex_);
  return session_.used();
}

bool ActorChannel::over() const {
  MutexLock lock(mutex_);
  return !session_.ended().ok() && !session_.link();
}

bool ActorChannel::ended() const {
  MutexLock lock(mutex_);
  return !session_.ended().ok();
}

bool ActorChannel::has_ring() const {
  const auto link = this->link();
  return link && link->has_ring();
}

}  // namespace troupe::detail

// The ring of a ChannelLink: offering it, writing calls into it, reading answers.

#include <chrono>
#include <utility>

#include "actors/actor_channel.h"
#include "actors/channel_link.h"
#include "troupe/serialize.h"

namespace troupe::detail {
namespace {

constexpr Duration kRingOfferTimeout = std::chrono::seconds(5);
// How long answers may lie that nobody waits for in get(), while somebody did a moment ago.
constexpr Duration kLookInterval = std::chrono::microseconds(300);
// Answers read before somebody else has a turn; more than a ring holds.
constexpr int kAnswersPerTurn = 256;
constexpr int kAllAnswers = 1 << 20;

void release_slabs_later(net::EventLoop& loop, const std::weak_ptr<CallerRing>& ring) {
  loop.call_after(kSlabIdleTime, [&loop, ring] {
    const auto alive = ring.lock();
    if (alive && !alive->closed() && !alive->slabs().release_idle())
      release_slabs_later(loop, ring);
  });
}

}  // namespace

// It holds nothing but the number: the loop may be the last to let go of it, and must not be that
// of what owns the loop.
class ChannelLink::RingSlot {
 public:
  explicit RingSlot(std::shared_ptr<std::atomic<int>> rings) : rings_(std::move(rings)) {}
  ~RingSlot() { --*rings_; }

 private:
  const std::shared_ptr<std::atomic<int>> rings_;
};

// An offer on its way: loop thread.
struct ChannelLink::Offer {
  UniqueFd socket;
  std::shared_ptr<CallerRing> ring;
  std::shared_ptr<RingSlot> slot;
};

// --- offering it ---------------------------------------------------------------------------------

void ChannelLink::count_answer(std::size_t bytes) {
  const bool worth_it = ++answered_ >= kRingAfterCalls || bytes > kRingInlineBytesMax;
  if (worth_it && !ring_offered_) offer_ring();
}

void ChannelLink::offer_ring() {
  ring_offered_ = true;  // once for a connection, whatever becomes of it
  const auto channel = channel_.lock();
  if (!channel || address_.local_name.empty()) return;
  const int rings_before = environment_->rings->fetch_add(1);
  auto slot = std::make_shared<RingSlot>(environment_->rings);
  if (rings_before >= environment_->rings_max) return;
  net::connect(loop(), address_, fmt::format("actor/{}/{}", channel->actor_id(), kRingPurpose),
               environment_->token, Deadline::after(kRingOfferTimeout, loop().clock()),
               [weak = weak_from_this(), slot](Result<ByteStream> socket) {
                 if (auto self = weak.lock()) self->on_ring_socket(slot, std::move(socket));
               });
}

// Whatever fails from here on, the calls stay with the socket.
void ChannelLink::on_ring_socket(std::shared_ptr<RingSlot> slot, Result<ByteStream> socket) {
  const auto channel = channel_.lock();
  if (!socket.ok() || !channel) return;
  auto ring = CallerRing::create(environment_->spin_max);
  if (!ring.ok()) return;
  if (!(*ring)->send_offer(socket->fd(), channel->caller(), attempt_, loop().clock()).ok()) return;
  auto offer = std::make_shared<Offer>();
  offer->socket = socket->take_socket();
  offer->ring = std::move(*ring);
  offer->slot = std::move(slot);
  net::EventLoop& loop = this->loop();
  loop.watch_readable(offer->socket.get(), [weak = weak_from_this(), offer, &loop] {
    const auto alive = offer;  // unwatching lets go of it
    if (!alive->socket.valid()) return;
    loop.unwatch(alive->socket.get());
    if (auto self = weak.lock()) self->on_ring_reply(alive);
    alive->socket.reset();
  });
  loop.call_after(kRingOfferTimeout, [weak = std::weak_ptr(offer), &loop] {
    const auto late = weak.lock();
    if (!late || !late->socket.valid()) return;
    loop.unwatch(late->socket.get());
    late->socket.reset();
  });
}

void ChannelLink::on_ring_reply(const std::shared_ptr<Offer>& offer) {
  if (!offer->ring->receive_reply(offer->socket.get()).ok()) return;
  const auto channel = channel_.lock();
  if (!channel) return;
  const bool used = channel->while_open(*this, [&] {
    slot_ = offer->slot;
    ring_owner_ = offer->ring;
    ring_.store(ring_owner_.get(), std::memory_order_release);
  });
  if (!used) return;
  loop().watch_readable(ring_owner_->wake_fd(), [weak = weak_from_this(), ring = ring_owner_] {
    if (auto self = weak.lock()) self->on_wake_up();
  });
}

// --- calls ---------------------------------------------------------------------------------------

// Nothing: the call goes over the socket.
std::optional<SendOutcome> ChannelLink::send_by_ring(std::uint64_t sequence, CallRequest& request,
                                                     std::size_t pending_calls) {
  CallerRing* const ring = this->ring();
  // (What was sent beside a message before stays so: it is too large for the ring.)
  if (ring == nullptr || request.attached) return std::nullopt;
  // The mailbox's own limit, where the ring would hide calls from it.
  const std::uint64_t calls_max = ring->waiting_calls_max();
  if (pending_calls > calls_max) {
    const std::uint64_t waiting = ring->waiting_calls(socket_calls_);
    if (waiting >= calls_max) {
      return SendOutcome{Sent::kRefused,
                         error(Code::kOverloaded,
                               "{} calls wait in the actor's mailbox already. Wait for answers "
                               "before calling on",
                               waiting)};
    }
  }
  // (In a program every argument in shared memory is in a slab of some ring.)
  const auto* slab = static_cast<const SlabLease*>(request.lent.get());
  if (slab != nullptr && slab->ring() != ring) return std::nullopt;
  const bool written = ring->write({.sequence = sequence,
                                    .method = request.method,
                                    .deadline = request.deadline.time(),
                                    .retry = request.retry,
                                    .socket_calls = socket_calls_,
                                    .arguments = request.arguments,
                                    .slab = slab});
  return written ? std::optional(SendOutcome{}) : std::nullopt;
}

std::optional<SlabLease> ChannelLink::take_slab(std::size_t bytes) {
  CallerRing* const ring = this->ring();
  if (ring == nullptr) return std::nullopt;
  auto slab = ring->take_slab(bytes);
  if (slab && ring->slabs().begin_releasing()) release_slabs_later(loop(), ring->weak_from_this());
  return slab;
}

// --- answers -------------------------------------------------------------------------------------

void ChannelLink::read_answers(ActorChannel& channel, Deadline deadline,
                               const std::function<bool()>& ended) {
  connection_->flush();
  CallerRing* const ring = this->ring();
  if (ring == nullptr || !ring->begin_wait()) return;
  const Clock& clock = loop().clock();
  // Whatever a continuation throws: a ring whose reader is gone without a word is read by nobody.
  const struct Reading {
    CallerRing& ring;
    ~Reading() { ring.end_wait(); }
  } reading{*ring};
  while (!ended()) {
    if (!read_ring(channel, kAnswersPerTurn)) break;
    if (ended() || ring->closed() || deadline.passed(clock.now())) break;
    ring->wait(deadline, clock, ended);
  }
}

void ChannelLink::nudge() {
  if (CallerRing* const ring = this->ring()) ring->nudge();
}

void ChannelLink::read_ring(ActorChannel& channel) {
  if (has_ring()) (void)read_ring(channel, kAllAnswers);
}

// Loop thread. Where a thread waits in get() time and again it reads what comes, and to wake this
// thread besides would only take time from it: then this one looks by the clock for a while.
void ChannelLink::on_wake_up() {
  CallerRing& ring = *this->ring();
  ring.drain_wake_up();
  if (ring.watched()) return;
  if (ring.waited_lately()) {
    ring.set_watched(true);
    look_later();
    return;
  }
  const auto channel = channel_.lock();
  const bool good = channel && read_ring(*channel, kAnswersPerTurn);
  if (good && !ring.closed()) ring.rearm_wake_up();
}

void ChannelLink::look_later() {
  loop().call_after(kLookInterval, [weak = weak_from_this()] {
    const auto self = weak.lock();
    const auto channel = self ? self->channel_.lock() : nullptr;
    if (!channel || self->ring()->closed() || !self->read_ring(*channel, kAllAnswers)) return;
    if (self->ring()->waited_lately()) {
      self->look_later();
      return;
    }
    self->ring()->set_watched(false);
    self->ring()->rearm_wake_up();
  });
}

// Reads answers and ends their calls. False when the ring made no sense, which ends the connection.
bool ChannelLink::read_ring(ActorChannel& channel, int count_max) {
  const bool good = ring()->read(
      count_max, [&](const CallerRing::Answer& answer) { on_ring_answer(channel, answer); });
  bool later = false;
  {
    MutexLock lock(continuations_mutex_);
    later = !continuations_.empty();
  }
  if (later && loop().in_loop_thread()) {
    run_continuations();
  } else if (later) {
    loop().post([self = shared_from_this()] { self->run_continuations(); });
  }
  // The actor's process has scribbled over the shared memory: everything on the way is lost.
  if (!good) end(error(Code::kProtocol, "the ring is damaged"));
  return good;
}

void ChannelLink::on_ring_answer(ActorChannel& channel, const CallerRing::Answer& answer) {
  Continuations later;
  if (answer.failed) {
    Decoder in(answer.bytes);
    Status why;
    if (!Codec<Status>::decode(in, why)) why = in.status();
    if (why.ok()) why = error(Code::kProtocol, "the actor failed without saying how");
    channel.on_ring_error(answer.sequence, std::move(why), later);
  } else {
    channel.on_ring_result(answer.sequence, answer.bytes, later);
  }
  if (later.empty()) return;
  MutexLock lock(continuations_mutex_);
  for (auto& continuation : later) continuations_.push_back(std::move(continuation));
}

// Loop thread.
void ChannelLink::run_continuations() {
  Continuations now;
  {
    MutexLock lock(continuations_mutex_);
    now.swap(continuations_);
  }
  for (const auto& continuation : now) continuation();
}

}  // namespace troupe::detail

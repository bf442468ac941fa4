// The fast road of an ActorChannel: making it, writing calls into it, reading answers.

#include <chrono>
#include <utility>

#include "actors/actor_channel.h"
#include "actors/serialize.h"

namespace troupe::detail {
namespace {

constexpr Duration kRoadOfferTimeout = std::chrono::seconds(5);
// How long answers may lie that nobody waits for in get(), while somebody did a moment ago.
constexpr Duration kLookInterval = std::chrono::microseconds(300);

void release_slabs_later(net::EventLoop& loop, const std::weak_ptr<CallerRoad>& road) {
  loop.call_after(kSlabIdleTime, [&loop, road] {
    const auto alive = road.lock();
    if (alive && !alive->closed() && !alive->release_idle_slabs()) release_slabs_later(loop, road);
  });
}

}  // namespace

// (It holds nothing but the number: the loop may be the last to let go of it, and must not be that
// of what owns the loop.)
struct ActorChannel::RoadSlot {
  explicit RoadSlot(std::shared_ptr<std::atomic<int>> r) : roads(std::move(r)) {}
  ~RoadSlot() { --*roads; }
  const std::shared_ptr<std::atomic<int>> roads;
};

// An offer on its way: loop thread.
struct ActorChannel::RoadOffering {
  UniqueFd socket;
  std::shared_ptr<CallerRoad> road;
  std::shared_ptr<RoadSlot> slot;
};

// --- making it

void ActorChannel::count_answer_locked() {
  if (++answered_ >= kRoadAfterCalls && !road_offered_ && road_ == Road::kOpen) {
    offer_road_locked();
  }
}

void ActorChannel::offer_road_locked() {
  road_offered_ = true;  // once for a connection, whatever becomes of it
  const net::Address address = address_locked();
  if (address.local_name.empty()) return;
  const int roads_before = environment_->roads->fetch_add(1);
  auto slot = std::make_shared<RoadSlot>(environment_->roads);
  if (roads_before >= environment_->roads_max) return;
  net::connect(*environment_->loop, address, fmt::format("actor/{}/{}", actor_id_, kRoadPurpose),
               environment_->token, Deadline::after(kRoadOfferTimeout, environment_->loop->clock()),
               [weak = weak_from_this(), attempt = attempt_, slot](Result<ByteStream> socket) {
                 if (auto self = weak.lock())
                   self->on_road_socket(attempt, slot, std::move(socket));
               });
}

// Whatever fails from here on, the calls stay with the socket.
void ActorChannel::on_road_socket(std::uint64_t attempt, std::shared_ptr<RoadSlot> slot,
                                  Result<ByteStream> socket) {
  if (!socket.ok()) return;
  auto road = CallerRoad::create(environment_->spin_max);
  if (!road.ok()) return;
  net::EventLoop& loop = *environment_->loop;
  if (!(*road)->send_offer(socket->fd(), caller_, attempt, loop.clock()).ok()) return;
  auto offering = std::make_shared<RoadOffering>();
  offering->socket = socket->take_socket();
  offering->road = std::move(*road);
  offering->slot = std::move(slot);
  loop.watch_readable(offering->socket.get(), [weak = weak_from_this(), attempt, offering, &loop] {
    const auto alive = offering;  // unwatching lets go of it
    if (!alive->socket.valid()) return;
    loop.unwatch(alive->socket.get());
    if (auto self = weak.lock()) self->on_road_reply(attempt, alive);
    alive->socket.reset();
  });
  loop.call_after(kRoadOfferTimeout, [weak = std::weak_ptr(offering), &loop] {
    const auto late = weak.lock();
    if (!late || !late->socket.valid()) return;
    loop.unwatch(late->socket.get());
    late->socket.reset();
  });
}

void ActorChannel::on_road_reply(std::uint64_t attempt,
                                 const std::shared_ptr<RoadOffering>& offering) {
  if (!offering->road->receive_reply(offering->socket.get()).ok()) return;
  const auto road = offering->road;
  {
    MutexLock lock(mutex_);
    if (attempt != attempt_ || road_ != Road::kOpen || !ended_.ok()) return;
    fast_road_ = road;
    road_slot_ = offering->slot;
  }
  environment_->loop->watch_readable(road->bell(), [weak = weak_from_this(), road] {
    if (auto self = weak.lock()) self->on_bell(road);
  });
}

void ActorChannel::drop_road(std::shared_ptr<CallerRoad> road, std::shared_ptr<RoadSlot> slot) {
  if (!road) return;
  road->close();
  {
    MutexLock lock(mutex_);
    lent_slabs_.clear();
  }
  net::EventLoop* loop = environment_->loop;
  loop->post(
      [loop, road = std::move(road), slot = std::move(slot)] { loop->unwatch(road->bell()); });
}

bool ActorChannel::has_fast_road() const {
  MutexLock lock(mutex_);
  return fast_road_ != nullptr;
}

// --- calls

// False: the call goes over the socket.
bool ActorChannel::send_by_road_locked(std::uint64_t sequence, PendingCall& call,
                                       Answers& answers) {
  CallRequest& request = call.request;
  // The mailbox's own limit, where the ring would hide calls from it.
  const std::uint64_t calls_max = fast_road_->waiting_calls_max();
  if (calls_.size() > calls_max) {
    const std::uint64_t waiting = fast_road_->waiting_calls(socket_calls_);
    if (waiting >= calls_max) {
      end_call_locked(calls_.find(sequence),
                      error(Code::kOverloaded,
                            "{} calls wait in the actor's mailbox already. Wait for answers before "
                            "calling on",
                            waiting),
                      answers);
      return true;
    }
  }
  const bool in_slab = request.slab.valid() && request.slab.road() == fast_road_.get();
  if (request.slab.valid() && !in_slab) return false;
  if (!fast_road_->write({.sequence = sequence,
                          .method = request.method,
                          .deadline = request.deadline.time(),
                          .retry = request.retry,
                          .socket_calls = socket_calls_,
                          .arguments = request.arguments,
                          .slab = in_slab ? &request.slab : nullptr})) {
    return false;
  }
  call.state = SendState::kSent;
  call.sent_before = true;
  if (!request.retry) request.arguments = {};
  return true;
}

std::optional<SlabLease> ActorChannel::take_slab(std::size_t bytes) {
  if (forked()) return std::nullopt;
  std::shared_ptr<CallerRoad> road;
  {
    MutexLock lock(mutex_);
    road = fast_road_;
  }
  if (!road) return std::nullopt;
  auto slab = road->take_slab(bytes);
  if (slab && road->begin_releasing()) release_slabs_later(*environment_->loop, road);
  return slab;
}

// --- answers

void ActorChannel::read_answers(Deadline deadline, const std::function<bool()>& ended) {
  if (forked()) return;
  std::shared_ptr<CallerRoad> road;
  std::shared_ptr<net::Connection> connection;
  {
    MutexLock lock(mutex_);
    road = fast_road_;
    connection = connection_;
  }
  if (connection) connection->flush();
  if (!road || !road->begin_wait()) return;
  const Clock& clock = environment_->loop->clock();
  while (!ended()) {
    if (!drain(*road, kAnswersPerTurn)) break;
    if (ended() || road->closed() || deadline.passed(clock.now())) break;
    road->wait(deadline, clock, ended);
  }
  road->end_wait();
}

// Loop thread. Where a thread waits in get() time and again it reads what comes, and to wake this
// thread besides would only take time from it: then this one looks by the clock for a while.
void ActorChannel::on_bell(const std::shared_ptr<CallerRoad>& road) {
  road->silence_bell();
  if (road->watched()) return;
  if (road->waited_lately()) {
    road->set_watched(true);
    look_later(road);
    return;
  }
  const bool good = drain(*road, kAnswersPerTurn);
  if (good && !road->closed()) road->rearm_bell();
}

void ActorChannel::look_later(const std::shared_ptr<CallerRoad>& road) {
  environment_->loop->call_after(kLookInterval, [weak = weak_from_this(), road] {
    const auto self = weak.lock();
    if (!self || road->closed() || !self->drain(*road, kAllAnswers)) return;
    if (road->waited_lately()) {
      self->look_later(road);
      return;
    }
    road->set_watched(false);
    road->rearm_bell();
  });
}

// Reads answers and ends their calls. False when the road is useless, which ends the connection
// too.
bool ActorChannel::drain(CallerRoad& road, int count_max) {
  const bool good =
      road.read(count_max, [this](const CallerRoad::Answer& answer) { on_road_answer(answer); });
  bool later = false;
  {
    MutexLock lock(later_mutex_);
    later = !later_.empty();
  }
  if (later && environment_->loop->in_loop_thread()) {
    run_later();
  } else if (later) {
    environment_->loop->post([self = shared_from_this()] { self->run_later(); });
  }
  if (!good) {
    // The actor's process has scribbled over the shared memory: everything on the way is lost.
    std::shared_ptr<net::Connection> connection;
    std::uint64_t attempt = 0;
    {
      MutexLock lock(mutex_);
      if (fast_road_.get() != &road) return false;
      connection = connection_;
      attempt = attempt_;
    }
    if (connection) connection->close();
    environment_->loop->post([weak = weak_from_this(), attempt] {
      if (auto self = weak.lock()) {
        self->on_close(attempt, error(Code::kProtocol, "the fast road is damaged"));
      }
    });
  }
  return good;
}

void ActorChannel::on_road_answer(const CallerRoad::Answer& answer) {
  Answers failed;
  std::optional<CallRequest> request;  // let go outside the lock
  SlabLease lent;
  {
    MutexLock lock(mutex_);
    const auto it = calls_.find(answer.sequence);
    if (it == calls_.end()) {  // cancelled, or past its deadline
      const auto slab = lent_slabs_.find(answer.sequence);
      if (slab == lent_slabs_.end()) return;
      lent = std::move(slab->second);
      lent_slabs_.erase(slab);
      return;
    }
    if (answer.failed) {
      Decoder in(answer.bytes);
      Status why;
      if (!Codec<Status>::decode(in, why)) why = in.status();
      if (why.ok()) why = error(Code::kProtocol, "the actor failed without saying how");
      end_call_locked(it, std::move(why), failed);
    } else {
      request.emplace(std::move(it->second.request));
      calls_.erase(it);
    }
  }
  Continuations later;
  if (answer.failed) {
    for (auto& [call, result] : failed.items) call.sink.answer(result.status(), {}, &later);
  } else {
    request->sink.answer(Status(), answer.bytes, &later);
  }
  if (later.empty()) return;
  MutexLock lock(later_mutex_);
  for (auto& continuation : later) later_.push_back(std::move(continuation));
}

// Loop thread.
void ActorChannel::run_later() {
  Continuations now;
  {
    MutexLock lock(later_mutex_);
    now.swap(later_);
  }
  for (const auto& continuation : now) continuation();
}

}  // namespace troupe::detail

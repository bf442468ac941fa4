// The rings of a CallServer: taking them, reading calls from them, leaving them.

#include <algorithm>
#include <chrono>
#include <utility>

#include "actors/call_peer.h"
#include "actors/call_server.h"
#include "runtime/base/machine.h"

namespace troupe::detail {
namespace {

constexpr Duration kRingArrivalTimeout = std::chrono::seconds(5);
// Calls taken from one ring before another has its turn.
constexpr int kCallsPerGathering = 64;

// How many CPUs the control group grants, whatever the affinity.
int granted_cpu_count() {
  PosixFileSystem files;
  return troupe::granted_cpu_count(files, 1 << 20);
}

}  // namespace

// --- taking them

void CallServer::accept_ring(UniqueFd socket) {
  if (!host_page_ || offers_.size() >= static_cast<std::size_t>(kRingsMax)) return;
  const std::uint64_t number = ++next_offer_;
  const int fd = socket.get();
  offers_.emplace(number, std::move(socket));
  const std::weak_ptr<CallServer> weak = weak_from_this();
  loop_.watch_readable(fd, [weak, number] {
    if (auto self = weak.lock()) self->on_offer(number);
  });
  loop_.call_after(kRingArrivalTimeout, [weak, number] {
    if (auto self = weak.lock()) self->end_offer(number);
  });
}

void CallServer::end_offer(std::uint64_t number) {
  const auto offer = offers_.find(number);
  if (offer == offers_.end()) return;
  loop_.unwatch(offer->second.get());
  offers_.erase(offer);
}

void CallServer::on_offer(std::uint64_t number) {
  const auto self = shared_from_this();
  const auto found = offers_.find(number);
  if (found == offers_.end()) return;
  const int socket = found->second.get();
  auto arrived = HostRing::receive_offer(socket);
  if (arrived.ok()) {
    const auto ring = attach_ring(std::move(*arrived));
    const Status told = HostRing::send_reply(socket, ring, host_page_->fd());
    // A caller that has not heard of it will not use it.
    if (ring.ok() && !told.ok()) detach_ring(*ring);
  }
  end_offer(number);
}

Result<std::shared_ptr<HostRing>> CallServer::attach_ring(HostRing::Arrived arrived) {
  const ClientId caller = arrived.offer.caller;
  const std::uint64_t number = arrived.offer.number;
  if (ring_count_.load() >= kRingsMax) {
    return error(Code::kResourceExhausted, "the process has {} rings already", kRingsMax);
  }
  auto ring = TROUPE_TRY(HostRing::adopt(std::move(arrived), loop_.clock()));
  if (cpu_limit_ == 0) cpu_limit_ = granted_cpu_count();
  MutexLock reading(ring->reading());
  MutexLock lock(mutex_);
  const std::shared_ptr<Peer> peer = peer_of_locked(caller);
  if (!peer) return error(Code::kNotFound, "the caller has no connection");
  if (number == 0 || number != peer->ring_number) {
    return error(Code::kAlreadyExists, "the connection of this ring is over, or has had one");
  }
  peer->ring_number = 0;
  peer->ring = ring;
  ring->begin(peer->calls);
  rings_.push_back(ring);
  ++ring_count_;
  ++source_count_;
  ++rings_version_;
  publish_spin_locked();
  return ring;
}

void CallServer::detach_ring(const std::shared_ptr<HostRing>& ring) {
  {
    // What the caller said before its end is run, as what it said over a socket is.
    MutexLock reading(ring->reading());
    pump(ring, kWholeRing);
    ring->detach();
  }
  MutexLock lock(mutex_);
  const std::shared_ptr<Peer> peer = peer_of_locked(ring->caller());
  if (peer && peer->ring == ring) peer->ring.reset();
  if (std::erase(rings_, ring) == 0) return;
  --ring_count_;
  --source_count_;
  ++rings_version_;
  publish_spin_locked();
}

// The memory of large results, when they have been read.
void CallServer::release_results_later(net::EventLoop& loop, const std::weak_ptr<HostRing>& ring) {
  loop.call_after(kSlabIdleTime, [&loop, ring] {
    const auto alive = ring.lock();
    if (alive && !alive->release_idle()) release_results_later(loop, ring);
  });
}

// --- items of pipelines

Status CallServer::bind_items(const std::shared_ptr<ItemSource>& items, const wire::Bind& bind) {
  std::shared_ptr<CalleeLink> replaced;
  MutexLock lock(mutex_);
  auto introduction = session_.introduce(bind);
  TROUPE_RETURN_IF_ERROR(introduction.refusal);
  if (!introduction.methods.refused.empty()) return introduction.methods.refused.begin()->second;
  replaced = session_.bind(items, bind, std::move(introduction.methods)).replaced;
  source_count_ -= std::erase(items_, std::dynamic_pointer_cast<ItemSource>(replaced));
  items_.push_back(items);
  ++source_count_;
  ++rings_version_;
  publish_spin_locked();
  mailbox_->post([] {});  // its thread looks there
  return {};
}

void CallServer::unbind_items(const std::shared_ptr<ItemSource>& items, ClientId caller) {
  MutexLock lock(mutex_);
  (void)session_.unbind(caller, *items, loop_.clock().now());
  if (std::erase(items_, items) == 0) return;
  --source_count_;
  ++rings_version_;
  publish_spin_locked();
}

// Who waits for this actor's calls: its callers and its own thread. They may spin where there is a
// core for each, as far as their affinities tell.
void CallServer::publish_spin_locked() {
  const CpuSet own = cpus_of_thread();
  CpuSet all = own;
  Duration spin = rings_.empty() && items_.empty() ? Duration::zero() : kRingSpin;
  // (A pipeline's owner knows how many processes it has.)
  for (const auto& items : items_) spin = std::min(spin, items->spin_max());
  for (const auto& ring : rings_) {
    all |= ring->cpus();
    spin = std::min(spin, ring->spin_max());
    if ((own | ring->cpus()).count() < 2 || ring->cpus().none()) spin = Duration::zero();
  }
  const std::size_t waiters = 1 + rings_.size();
  const bool few_cpus = all.count() < waiters || static_cast<std::size_t>(cpu_limit_) < waiters;
  if (!rings_.empty() && few_cpus) spin = Duration::zero();
  spin_ns_.store(spin.count(), std::memory_order_relaxed);
  host_page_->page().spin_ns.store(spin.count(), std::memory_order_relaxed);
}

// --- reading

QueuedCall CallServer::queued_call(const std::shared_ptr<HostRing>& ring,
                                   const HostRing::Call& call) const {
  QueuedCall queued{.caller = ring->caller(),
                    .sequence = call.sequence,
                    .method = call.method,
                    .deadline = Deadline::at(call.deadline),
                    .arguments = {},
                    .shared_arguments = {},
                    .ring = ring,
                    .keep_answer = call.retry};
  if (call.in_slab) {
    queued.shared_arguments = call.arguments;
  } else {
    queued.arguments.assign(call.arguments.begin(), call.arguments.end());
  }
  return queued;
}

void CallServer::pump(const std::shared_ptr<HostRing>& ring, int count_max) TROUPE_NO_ANALYSIS {
  for (int i = 0; i < count_max; ++i) {
    const auto call = ring->front();
    if (!call) break;
    QueuedCall queued = queued_call(ring, *call);
    ring->pop();
    if (auto admitted = admit(std::move(queued))) push(std::move(*admitted));
  }
  if (ring->damaged()) on_damaged(ring);
}

// Nothing its process says can be trusted: its connection ends, and with it the ring.
void CallServer::on_damaged(const std::shared_ptr<HostRing>& ring) {
  loop_.post([weak = weak_from_this(), ring] {
    const auto self = weak.lock();
    if (!self) return;
    std::shared_ptr<Peer> peer;
    {
      MutexLock lock(self->mutex_);
      peer = self->peer_of_locked(ring->caller());
      if (peer && peer->ring != ring) peer.reset();
    }
    if (peer) self->on_close(peer);
  });
}

const CallServer::Rings& CallServer::polled_rings() {
  const std::uint64_t version = rings_version_.load(std::memory_order_acquire);
  if (version != polled_version_) {
    MutexLock lock(mutex_);
    polled_ = rings_;
    polled_items_ = items_;
    polled_version_ = version;
  }
  return polled_;
}

bool CallServer::waiting() {
  for (const auto& ring : polled_rings()) {
    if (ring->readable()) return true;
  }
  for (const auto& items : polled_items_) {
    if (items->readable()) return true;
  }
  return false;
}

std::optional<QueuedCall> CallServer::take() {
  const Rings& rings = polled_rings();
  const std::size_t sources = rings.size() + polled_items_.size();
  for (std::size_t i = 0; i < sources; ++i) {
    const std::size_t index = (polled_next_ + i) % sources;
    auto call = index < rings.size() ? take_from(rings[index])
                                     : take_from(*polled_items_[index - rings.size()]);
    if (!call) continue;
    polled_next_ = index + 1;
    return call;
  }
  return std::nullopt;
}

std::optional<QueuedCall> CallServer::take_from(const std::shared_ptr<HostRing>& ring) {
  if (!ring->readable()) return std::nullopt;
  MutexLock reading(ring->reading());
  // The loop's thread may just have moved calls of this ring into the mailbox.
  if (mailbox_->calls() > 0) return std::nullopt;
  const auto call = ring->front();
  if (!call) {
    if (ring->damaged()) on_damaged(ring);
    return std::nullopt;
  }
  QueuedCall queued = queued_call(ring, *call);
  ring->pop();
  return admit(std::move(queued));
}

std::optional<QueuedCall> CallServer::take_from(ItemSource& items) {
  auto call = items.next();
  return call ? admit(std::move(*call)) : std::nullopt;
}

void CallServer::gather() {
  for (const auto& ring : polled_rings()) {
    if (!ring->readable()) continue;
    MutexLock reading(ring->reading());
    pump(ring, kCallsPerGathering);
  }
  for (const auto& items : polled_items_) {
    if (auto call = take_from(*items)) push(std::move(*call));
  }
}

Duration CallServer::spin() { return Duration(spin_ns_.load(std::memory_order_relaxed)); }

}  // namespace troupe::detail

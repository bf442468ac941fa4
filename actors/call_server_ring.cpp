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
    const Status told = HostRing::send_reply(socket, ring.status(), host_page_->fd());
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
  ++rings_version_;
  publish_spin_locked();
}

// Who waits for this actor's calls: its callers and its own thread. They may spin where there is a
// core for each, as far as their affinities tell.
void CallServer::publish_spin_locked() {
  const CpuSet own = cpus_of_thread();
  CpuSet all = own;
  Duration spin = rings_.empty() ? Duration::zero() : kRingSpin;
  for (const auto& ring : rings_) {
    all |= ring->cpus();
    spin = std::min(spin, ring->spin_max());
    if ((own | ring->cpus()).count() < 2 || ring->cpus().none()) spin = Duration::zero();
  }
  const std::size_t waiters = 1 + rings_.size();
  if (all.count() < waiters || static_cast<std::size_t>(cpu_limit_) < waiters) {
    spin = Duration::zero();
  }
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
    polled_version_ = version;
  }
  return polled_;
}

bool CallServer::waiting() {
  for (const auto& ring : polled_rings()) {
    if (ring->readable()) return true;
  }
  return false;
}

std::optional<QueuedCall> CallServer::take() {
  const Rings& rings = polled_rings();
  for (std::size_t i = 0; i < rings.size(); ++i) {
    const std::size_t index = (polled_next_ + i) % rings.size();
    const std::shared_ptr<HostRing>& ring = rings[index];
    if (!ring->readable()) continue;
    MutexLock reading(ring->reading());
    // The loop's thread may just have moved calls of this ring into the mailbox.
    if (mailbox_->calls() > 0) return std::nullopt;
    const auto call = ring->front();
    if (!call) {
      if (ring->damaged()) on_damaged(ring);
      continue;
    }
    QueuedCall queued = queued_call(ring, *call);
    ring->pop();
    auto admitted = admit(std::move(queued));
    if (!admitted) continue;
    polled_next_ = index + 1;
    return admitted;
  }
  return std::nullopt;
}

void CallServer::gather() {
  for (const auto& ring : polled_rings()) {
    if (!ring->readable()) continue;
    MutexLock reading(ring->reading());
    pump(ring, kCallsPerGathering);
  }
}

Duration CallServer::spin() { return Duration(spin_ns_.load(std::memory_order_relaxed)); }

}  // namespace troupe::detail

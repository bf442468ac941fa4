#include "runtime/collective/shm_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/passed_fds.h"
#include "runtime/memory/futex.h"

namespace troupe::collective {
namespace {

// All rings of a rank together stay near the second-level cache's size; each holds its chunks.
constexpr std::size_t kRingsBytes = 2u << 20;
constexpr std::size_t kRingBytesMax = 512u << 10;
constexpr std::size_t kRingBytesMin = kChunksBuffered * kChunkBytes;

}  // namespace

void wake(WaitSlot& slot) {
  slot.wake_word.fetch_add(1, std::memory_order_release);
  memory::futex_wake_all(slot.wake_word);
}

SegmentPlan SegmentPlan::for_peers(std::size_t ring_count) {
  const std::size_t share = std::bit_floor(kRingsBytes / std::max<std::size_t>(ring_count, 1));
  return {ring_count, std::clamp(share, kRingBytesMin, kRingBytesMax)};
}

std::size_t SegmentPlan::control_offset(std::size_t ring) const {
  return memory::page_bytes() + ring * sizeof(memory::RingControl);
}

std::size_t SegmentPlan::data_offset(std::size_t ring) const {
  const std::size_t page = memory::page_bytes();
  const std::size_t controls = (ring_count * sizeof(memory::RingControl) + page - 1) / page * page;
  return page + controls + ring * ring_bytes;
}

std::size_t SegmentPlan::size_bytes() const { return data_offset(ring_count); }

ShmLink::ShmLink(UniqueFd socket, int my_rank, WaitSlot* peer_slot, memory::RingWriter writer,
                 memory::RingReader reader, bool polls_doorbell)
    : socket_(std::move(socket)),
      my_bit_(wait_bit(my_rank)),
      peer_slot_(peer_slot),
      writer_(std::move(writer)),
      reader_(std::move(reader)),
      polls_doorbell_(polls_doorbell) {}

void ShmLink::flush() {
  const bool published = writer_.publish();
  const bool released = reader_.release();
  if (!published && !released) return;
  // Either we see that the peer waits, or it sees what we published before it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if ((peer_slot_->waiting_for.load(std::memory_order_relaxed) & my_bit_) == 0) return;
  // Whoever empties the mask wakes, even if it is a newer one without our bit: nobody else would.
  if (peer_slot_->waiting_for.exchange(0, std::memory_order_acq_rel) == 0) return;
  if (peer_slot_->doorbell.load(std::memory_order_relaxed) != 0) {
    const char doorbell = 1;
    (void)!::send(socket_.get(), &doorbell, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  } else {
    wake(*peer_slot_);
  }
}

std::size_t ShmLink::receive(std::span<std::byte> out) {
  const auto bytes = reader_.readable(out.size());
  const std::size_t count = std::min(out.size(), bytes.size());
  if (count != 0) std::memcpy(out.data(), bytes.data(), count);
  reader_.consume(count);
  return count;
}

void ShmLink::drain_doorbell() {
  // A descriptor ends what one call returns.
  for (;;) {
    char doorbells[64];
    iovec part{doorbells, sizeof doorbells};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0) return;
    take_passed_fds(message, passed_);
  }
}

UniqueFd ShmLink::take_descriptor() {
  if (passed_.empty()) drain_doorbell();
  if (passed_.empty()) return {};
  UniqueFd descriptor = std::move(passed_.front());
  passed_.pop_front();
  return descriptor;
}

}  // namespace troupe::collective

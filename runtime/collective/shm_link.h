#pragma once
// A peer on the same node: two rings in shared memory, one in each side's segment. Internal.
//
// Each rank has one segment: a page with its waiting slot, then per local peer a ring control and
// the ring's bytes. A waiting rank writes into its slot whom it waits for; who makes progress for
// it wakes it, by futex, or by a byte on the Unix socket where it sleeps in poll() because it has
// TCP peers too (the doorbell).

#include <deque>

#include "runtime/collective/link.h"
#include "runtime/memory/byte_ring.h"
#include "runtime/memory/segment.h"
#include "troupe/unique_fd.h"

namespace troupe::collective {

struct WaitSlot {
  // Changes at each wake; what the owner sleeps on.
  alignas(128) std::atomic<std::uint32_t> wake_word;
  std::atomic<std::uint32_t> doorbell;  // 1: the owner sleeps in poll()
  std::atomic<std::uint32_t> given_up;  // 1: what the owner has is not to be relied on any more
  // Bit (peer's rank mod 64) of those whose progress must wake the owner.
  alignas(128) std::atomic<std::uint64_t> waiting_for;
};

// Wakes the owner of `slot` whatever it waits for.
void wake(WaitSlot& slot);

inline std::uint64_t wait_bit(int rank) { return std::uint64_t{1} << (rank % 64); }

// Where things lie in a rank's segment with rings for `ring_count` local peers.
struct SegmentPlan {
  std::size_t ring_count;
  std::size_t ring_bytes;

  static SegmentPlan for_peers(std::size_t ring_count);
  std::size_t control_offset(std::size_t ring) const;
  std::size_t data_offset(std::size_t ring) const;
  std::size_t size_bytes() const;
};

class ShmLink final : public Link {
 public:
  // my_rank: whose progress this link reports. peer_slot and the rings lie in segments that outlive
  // the link.
  ShmLink(UniqueFd socket, int my_rank, WaitSlot* peer_slot, memory::RingWriter writer,
          memory::RingReader reader, bool polls_doorbell);

  std::size_t send(std::span<const std::byte> bytes) override { return writer_.write(bytes); }
  void flush() override;
  bool unsent() const override { return false; }
  std::span<const std::byte> readable(std::size_t want) override { return reader_.readable(want); }
  void consume(std::size_t count) override { reader_.consume(count); }
  std::size_t receive(std::span<std::byte> out) override;
  bool broken() const override { return reader_.damaged(); }
  // The ring's size limits what is under way.
  std::size_t ahead_bytes() const override { return SIZE_MAX / 2; }
  std::size_t lag_chunks() const override { return 2; }
  bool gave_up() const override {
    return peer_slot_->given_up.load(std::memory_order_relaxed) != 0;
  }
  UniqueFd take_descriptor() override;
  int socket() const override { return socket_.get(); }
  short poll_events(bool, bool) const override { return polls_doorbell_ ? POLLIN : 0; }
  void drain_doorbell() override;

 private:
  UniqueFd socket_;
  std::uint64_t my_bit_;
  WaitSlot* peer_slot_;
  memory::RingWriter writer_;
  memory::RingReader reader_;
  bool polls_doorbell_;
  std::deque<UniqueFd> passed_;  // came among the doorbells
};

}  // namespace troupe::collective

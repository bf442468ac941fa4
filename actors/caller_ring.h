#pragma once
// The caller's end of a ring (call_ring.h).

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "actors/call_ring.h"
#include "actors/ring_slabs.h"
#include "actors/session/call_request.h"
#include "runtime/memory/adaptive_spin.h"
#include "runtime/memory/byte_ring.h"
#include "runtime/memory/segment.h"
#include "runtime/memory/wait_word.h"
#include "troupe/detail/mutex.h"

namespace troupe::detail {

// Large arguments on their way: a part of a ring's slabs that was written, and is given back when
// the answer has come. Moved, not copied.
class SlabLease;

class CallerRing : public std::enable_shared_from_this<CallerRing> {
 public:
  // Makes the shared memory. `spin_max`: zero to never spin.
  static Result<std::shared_ptr<CallerRing>> create(Duration spin_max);

  // Gives the host its descriptors over a local socket that names it.
  Status send_offer(int socket, ClientId caller, std::uint64_t number, const Clock& clock);
  // Takes the host's answer, which is there to be read. Then the ring may be used.
  Status receive_reply(int socket);

  // --- calls: one thread at a time, the channel's lock ---
  struct Call {
    std::uint64_t sequence = 0;
    std::uint32_t method = 0;
    TimePoint deadline;
    bool retry = false;
    std::uint64_t socket_calls = 0;
    std::span<const std::byte> arguments;
    const SlabLease* slab = nullptr;  // in place of `arguments`
  };
  // Writes a call and wakes the actor. False, without effect, where it does not fit now: it goes
  // over the socket.
  bool write(const Call& call);
  // How many calls wait for the actor, as far as this caller sees; `socket_calls` as in Call.
  std::uint64_t waiting_calls(std::uint64_t socket_calls) const;
  // And how many may.
  std::uint64_t waiting_calls_max() const;

  // --- answers: any thread ---
  struct Answer {
    std::uint64_t sequence = 0;
    bool failed = false;
    std::span<const std::byte> bytes;                // shared memory: read each byte once
    std::optional<std::size_t> slot = std::nullopt;  // a large result's
  };
  bool has_answers() const { return memory::ring_has_bytes(page().answers); }
  // Calls `take(answer)` for each answer that is there, at most `count_max`, in order, under a
  // lock. False when the ring made no sense: the ring is useless.
  template <typename Take>
  bool read(int count_max, Take take);

  // Waits, in this thread, until an answer is there, `ended` says that nothing is to be waited for,
  // or the deadline; at most about a second. False where another thread waits already.
  // Between begin_wait() and end_wait(), nobody else has to look for answers.
  bool begin_wait();
  template <typename Ended>
  void wait(Deadline deadline, const Clock& clock, Ended ended);
  void end_wait();
  // The eventfd was readable and this thread has read the answers; from now on the host writes to
  // it again.
  void rearm_wake_up();
  // The loop's thread looks for answers by the clock, so that the host need not write to the
  // eventfd. After it has been set to false, rearm_wake_up().
  void set_watched(bool watched) { watched_.store(watched, std::memory_order_seq_cst); }
  bool watched() const { return watched_.load(std::memory_order_seq_cst); }
  // Whether anybody has begun to wait since this was asked last. Loop thread.
  bool waited_lately() {
    const std::uint64_t waits = waits_.load(std::memory_order_relaxed);
    return std::exchange(waits_seen_, waits) != waits;
  }
  // Readable when the host wakes the loop. Stays the ring's.
  int wake_fd() const { return wake_fd_.get(); }
  void drain_wake_up();
  // Ends a wait(): something else has ended calls. Any thread.
  void nudge() TROUPE_EXCLUDES(nudge_mutex_);
  // No wait and no use any more.
  void close();
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  // --- large arguments: any thread ---
  std::optional<SlabLease> take_slab(std::size_t bytes);
  RingSlabs& slabs() { return slabs_; }

 private:
  friend class SlabLease;
  CallerRing(memory::Segment segment, memory::Segment slabs, UniqueFd wake_fd,
             memory::MirroredMapping calls, memory::MirroredMapping answers);
  RingPage& page() const { return *reinterpret_cast<RingPage*>(data_); }
  HostPage& host_page() const { return *reinterpret_cast<HostPage*>(host_data_); }
  std::optional<Answer> front(bool& damaged) TROUPE_REQUIRES(read_mutex_);
  void wake_own_loop();
  Duration spin() const;

  memory::Segment segment_;
  std::byte* data_ = nullptr;
  RingSlabs slabs_;
  memory::Segment results_;  // the host's
  memory::Segment host_segment_;
  std::byte* host_data_ = nullptr;
  UniqueFd wake_fd_;
  std::atomic<bool> closed_{false};

  memory::RingWriter calls_;  // the channel's lock
  memory::Waker host_waker_;
  std::uint64_t calls_written_ = 0;

  Mutex read_mutex_;
  memory::RingReader answers_ TROUPE_GUARDED_BY(read_mutex_);
  std::size_t pending_bytes_ TROUPE_GUARDED_BY(read_mutex_) = 0;

  // Whoever has taken it (true) owns the sleeper.
  std::atomic<bool> waiting_{false};
  std::atomic<bool> wake_up_missed_{false};
  std::atomic<bool> watched_{false};
  std::atomic<std::uint64_t> waits_{0};
  std::uint64_t waits_seen_ = 0;  // loop thread
  memory::Sleeper sleeper_;
  memory::AdaptiveSpin adaptive_;

  Mutex nudge_mutex_;
  memory::Waker nudger_ TROUPE_GUARDED_BY(nudge_mutex_);
};

class SlabLease final : public LentArguments {
 public:
  SlabLease() = default;
  SlabLease(SlabLease&& other) noexcept;
  SlabLease& operator=(SlabLease&& other) noexcept;
  ~SlabLease() override;

  std::span<const std::byte> bytes() const override { return space_.first(used_); }

  bool valid() const { return ring_ != nullptr; }
  std::span<std::byte> space() const { return space_; }
  const CallerRing* ring() const { return ring_.get(); }
  std::size_t offset() const { return offset_; }
  // How much of the space is the arguments.
  void set_used(std::size_t bytes) { used_ = bytes; }

 private:
  friend class CallerRing;
  std::shared_ptr<CallerRing> ring_;
  std::span<std::byte> space_;
  std::size_t offset_ = 0;
  std::size_t used_ = 0;
};

template <typename Take>
bool CallerRing::read(int count_max, Take take) {
  MutexLock lock(read_mutex_);
  bool damaged = false;
  for (int i = 0; i < count_max; ++i) {
    const std::optional<Answer> answer = front(damaged);
    if (!answer) break;
    take(*answer);
    if (answer->slot) page().results[*answer->slot].store(0, std::memory_order_release);
    answers_.consume(pending_bytes_);
    answers_.release();
  }
  return !damaged;
}

template <typename Ended>
void CallerRing::wait(Deadline deadline, const Clock& clock, Ended ended) {
  const auto found = [&] { return has_answers() || closed() || ended(); };
  if (found()) return;
  if (const Duration budget = spin(); budget > Duration::zero() && adaptive_.worthwhile()) {
    const bool in_time = memory::spin_until(budget, clock, found);
    adaptive_.ended(in_time);
    if (in_time) return;
  }
  sleeper_.announce(memory::WaitState::kAsleep);
  if (!found()) {
    const Duration left = deadline.remaining(clock.now());
    sleeper_.sleep(left < kRingSleepMax ? left : kRingSleepMax);
  }
  sleeper_.awake();
}

}  // namespace troupe::detail

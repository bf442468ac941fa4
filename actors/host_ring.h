#pragma once
// The host's end of a ring (call_ring.h): reads one caller's calls and writes its answers.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "actors/call_ring.h"
#include "actors/ring_slabs.h"
#include "runtime/memory/byte_ring.h"
#include "runtime/memory/segment.h"
#include "runtime/memory/wait_word.h"
#include "troupe/detail/mutex.h"

namespace troupe::detail {

// The memory of a HostPage, zeroed at first.
class HostPageSegment {
 public:
  static Result<std::shared_ptr<HostPageSegment>> create();
  HostPage& page() const { return *reinterpret_cast<HostPage*>(data_); }
  int fd() const { return segment_.fd(); }

 private:
  explicit HostPageSegment(memory::Segment segment)
      : segment_(std::move(segment)), data_(segment_.data()) {}
  memory::Segment segment_;
  std::byte* data_;
};

class HostRing;

// A large result that lies in shared memory until the caller has read it. The ring outlives it; one
// that was not sent goes with it.
class LentResult {
 public:
  LentResult() = default;
  LentResult(LentResult&& other) noexcept
      : ring_(std::exchange(other.ring_, nullptr)), slot_(other.slot_) {}
  LentResult& operator=(LentResult&& other) noexcept {
    std::swap(ring_, other.ring_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~LentResult();
  bool there() const { return ring_ != nullptr; }

 private:
  friend class HostRing;
  LentResult(HostRing* ring, std::size_t slot) : ring_(ring), slot_(slot) {}
  HostRing* ring_ = nullptr;
  std::size_t slot_ = 0;
};

class HostRing {
 public:
  struct Arrived {
    RingOffer offer;
    std::vector<UniqueFd> descriptors;
  };
  // Takes an offer from a local socket that is readable. kProtocol when it is none.
  static Result<Arrived> receive_offer(int socket);
  // Maps what was offered. Refuses (kProtocol, kFailedPrecondition) what is not of this version, of
  // other sizes, or of a process with another monotonic clock.
  static Result<std::shared_ptr<HostRing>> adopt(Arrived arrived, const Clock& clock);
  // Answers the offer: with this ring, where it was adopted, and the descriptor of the HostPage.
  static Status send_reply(int socket, const Result<std::shared_ptr<HostRing>>& ring,
                           int host_page);

  // A part of a caller's slabs, in place.
  struct Call {
    std::uint64_t sequence = 0;
    std::uint32_t method = 0;
    TimePoint deadline;
    bool retry = false;
    bool in_slab = false;
    std::span<const std::byte> arguments;  // shared memory; in the ring only until pop()
  };

  // Reading: whoever holds it, one at a time.
  Mutex& reading() { return reading_; }
  // The next call where there is one that may be read now; leaves it there until pop(). Sets
  // damaged() where the ring makes no sense.
  std::optional<Call> front() TROUPE_REQUIRES(reading_);
  void pop() TROUPE_REQUIRES(reading_);
  // One more call of this caller has come over the socket.
  void count_socket_call() TROUPE_REQUIRES(reading_);
  // Nothing more is read from it.
  void detach() TROUPE_REQUIRES(reading_) { detached_.store(true, std::memory_order_release); }
  // As many calls came over the socket before there was this ring.
  void begin(std::uint64_t socket_calls) TROUPE_REQUIRES(reading_);
  bool detached() const { return detached_.load(std::memory_order_acquire); }
  bool damaged() const { return damaged_.load(std::memory_order_acquire); }
  // Whether front() has something to say. Any thread, without a lock.
  bool readable() const {
    return memory::ring_has_bytes(page().calls) && !blocked_.load(std::memory_order_acquire) &&
           !detached() && !damaged();
  }

  // Whether a result is too large for the ring itself.
  static bool is_large(const Result<wire::Bytes>& result) {
    return result.ok() && result->size() > kRingInlineBytesMax;
  }
  // Copies a large result beside the ring; nothing where it is not large, or where there is no room
  // for it. Any thread.
  LentResult lend(const Result<wire::Bytes>& result) TROUPE_EXCLUDES(lending_);
  // Writes an answer and wakes the caller. False, without effect, where it does not fit now: it
  // goes over the socket. `lent`: the result, where that is large. Any thread.
  bool answer(std::uint64_t sequence, const Result<wire::Bytes>& result, LentResult lent = {})
      TROUPE_EXCLUDES(answering_);
  // RingSlabs::begin_releasing, release_idle: of the memory of large results.
  bool begin_releasing() { return results_.begin_releasing(); }
  bool release_idle() TROUPE_EXCLUDES(lending_);

  Duration spin_max() const { return spin_max_; }
  const CpuSet& cpus() const { return cpus_; }
  ClientId caller() const { return caller_; }
  std::uint64_t number() const { return number_; }

 private:
  friend class LentResult;
  HostRing(const RingOffer& offer, memory::Segment segment, memory::Segment slabs,
           memory::Segment results, UniqueFd wake_fd, memory::MirroredMapping calls,
           memory::MirroredMapping answers);
  void take_back(std::size_t slot) TROUPE_EXCLUDES(lending_);
  void take_back_read_locked() TROUPE_REQUIRES(lending_);
  RingPage& page() const { return *reinterpret_cast<RingPage*>(data_); }
  std::optional<Call> fail() TROUPE_REQUIRES(reading_);

  const ClientId caller_;
  const std::uint64_t number_;
  memory::Segment segment_;
  std::byte* data_ = nullptr;
  memory::Segment slabs_;
  const UniqueFd wake_fd_;
  Duration spin_max_{};
  CpuSet cpus_;

  std::atomic<bool> blocked_{false};
  std::atomic<bool> detached_{false};
  std::atomic<bool> damaged_{false};
  Mutex reading_;
  memory::RingReader calls_ TROUPE_GUARDED_BY(reading_);
  std::size_t pending_bytes_ TROUPE_GUARDED_BY(reading_) = 0;
  std::uint64_t socket_calls_ TROUPE_GUARDED_BY(reading_) = 0;
  std::uint64_t ring_calls_ TROUPE_GUARDED_BY(reading_) = 0;

  Mutex answering_;
  memory::RingWriter answers_ TROUPE_GUARDED_BY(answering_);
  memory::Waker caller_waker_ TROUPE_GUARDED_BY(answering_);

  Mutex lending_;
  RingSlabs results_;
  struct Part {
    std::size_t offset = 0;
    std::size_t bytes = 0;  // 0: nothing lies there
  };
  std::array<Part, kRingResultsMax> lent_ TROUPE_GUARDED_BY(lending_);
  std::size_t lent_bytes_ TROUPE_GUARDED_BY(lending_) = 0;
};

}  // namespace troupe::detail

#pragma once
// The shared-memory ring between a caller and an actor on one node: a ring of calls, a ring of
// answers and the words that both ends wait on. Its format, and how it is offered.
//
// The socket between the two (wire/call_messages.h) stays: it binds, cancels, tells of deaths, and
// carries what does not fit into a ring. When a caller has used it for a while it makes the ring
// and offers it over a second local connection (target "actor/ID/.ring"), whose descriptors are the
// ring's segment, the segment of its large arguments and the eventfd that wakes the caller's loop;
// the host answers with the descriptors of its own HostPage and of the segment of its large
// results. That connection then closes.
//
// Order. A call in the ring says how many calls went over the socket before it, and is not read
// before those have arrived; when one arrives over the socket, what the ring holds before it is
// read first. So ring and socket together are one stream, whatever goes where.
//
// Trust. The peer has the cluster's token, but may be faulty: every length and position is checked
// when it is read, once, and what a message says is copied before it is looked at. A ring that
// makes no sense ends with its connection.
//
// These bytes never leave the machine and both sides run on it at once: integers are the machine's
// own, times are those of its monotonic clock.

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/memory/byte_ring.h"
#include "runtime/memory/segment.h"
#include "runtime/wire/types.h"
#include "troupe/unique_fd.h"

namespace troupe::detail {

// --- limits

// Calls answered on a connection before a ring is made: most connections carry a handful. After a
// result that is too large for a ring's own bytes it is made at once.
inline constexpr std::uint64_t kRingAfterCalls = 32;
// Rings of one process in each direction: 64 × (two rings and the slabs in use). Others keep to
// their sockets.
inline constexpr int kRingsMax = 64;
inline constexpr std::size_t kRingBytes = 256u << 10;  // each of the two
// Arguments and results of at most so many bytes go through the rings; larger ones beside them, in
// slabs (ring_slabs.h), and what those do not hold over the socket.
inline constexpr std::size_t kRingInlineBytesMax = 64u << 10;
// Large results that lie at a caller and have not been read: more of them, and more than
// limits::kUnreadAnswerBytesMax, go over the socket.
inline constexpr std::size_t kRingResultsMax = 32;
// Address space for large arguments, and as much for large results; memory only where it was used
// lately: what nobody has used for kSlabIdleTime goes back to the machine.
inline constexpr std::size_t kRingSlabBytes = 256u << 20;
inline constexpr std::size_t kRingSlabGranuleBytes = 64u << 10;
inline constexpr Duration kSlabIdleTime = std::chrono::seconds(1);
// How long whoever waits looks again and again before it sleeps, where it may: a few times what a
// short call takes.
inline constexpr Duration kRingSpin = std::chrono::microseconds(20);
// A sleep's end without a wake-up: what a faulty peer can cost others.
inline constexpr Duration kRingSleepMax = std::chrono::seconds(1);

// --- the shared pages

inline constexpr std::uint64_t kRingMagic = 0x31444f5250555254;  // "TRUPROD1"
inline constexpr std::uint32_t kRingVersion = 2;

using CpuSet = std::bitset<1024>;
// The CPUs that this thread may run on.
CpuSet cpus_of_thread();

// The first page of a ring's segment; the ring of calls and the ring of answers follow it.
struct RingPage {
  std::uint64_t magic;
  std::uint32_t version;
  // Of the caller: how long it wants to spin at most, and where.
  std::int64_t spin_ns;
  std::array<std::uint64_t, 16> cpus;
  memory::RingControl calls;
  memory::RingControl answers;
  // Whether the caller waits for answers (memory/wait_word.h). It may ask for a write to its
  // eventfd instead.
  alignas(128) std::atomic<std::uint32_t> caller_word;
  // Calls that the host has taken from the ring and from the socket since the ring is there.
  alignas(128) std::atomic<std::uint64_t> taken;
  // Whether a large result lies there: set by the host, and cleared by the caller when it has read
  // it (RingResult::slot).
  alignas(128) std::array<std::atomic<std::uint32_t>, kRingResultsMax> results;
};
inline constexpr std::size_t kRingPageBytes = 4096;
inline constexpr std::size_t kRingSegmentBytes = kRingPageBytes + 2 * kRingBytes;
static_assert(sizeof(RingPage) <= kRingPageBytes);
static_assert(kRingInlineBytesMax * 2 < kRingBytes);

// Of a process that hosts an actor; all its callers map it.
struct HostPage {
  // Whether the actor's thread waits for work.
  std::atomic<std::uint32_t> host_word;
  // Calls that wait in the actor's mailbox, or behind it; and how many may, 0: as many as a mailbox
  // holds.
  alignas(128) std::atomic<std::uint64_t> mailbox_calls;
  std::atomic<std::uint64_t> calls_max;
  // How long waits for this actor may spin: zero unless everybody who waits for it, and it, has a
  // core to itself.
  std::atomic<std::int64_t> spin_ns;
};
inline constexpr std::size_t kHostPageBytes = 4096;

// --- messages: a header, then `bytes` bytes, filled up to a multiple of 8

struct RingCall {
  static constexpr std::uint32_t kInSlab = 1;  // the arguments are in the slab segment
  static constexpr std::uint32_t kRetry = 2;   // may come again: its answer is kept
  std::uint32_t bytes;
  std::uint32_t method;
  std::uint64_t sequence;
  std::int64_t deadline_ns;
  std::uint64_t socket_calls;  // that went over the socket before, since the connection bound
  std::uint64_t slab_offset;
  std::uint32_t slab_bytes;
  std::uint32_t flags;
};
static_assert(sizeof(RingCall) == 48);

struct RingAnswer {
  static constexpr std::uint32_t kResult = 0;  // the bytes are the result
  static constexpr std::uint32_t kFailed = 1;  // a Status (serialize.h)
  static constexpr std::uint32_t kInSlab = 2;  // a RingResult
  std::uint32_t bytes;
  std::uint32_t kind;
  std::uint64_t sequence;
};
static_assert(sizeof(RingAnswer) == 16);

// Where a large result is in the host's slabs.
struct RingResult {
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t slot;  // of RingPage::results
};

constexpr std::size_t padded_bytes(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

// --- the offer

inline constexpr const char* kRingPurpose = ".ring";

// caller → host, with three descriptors: segment, slabs, eventfd.
struct RingOffer {
  std::uint64_t magic = kRingMagic;
  std::uint32_t version = kRingVersion;
  std::uint32_t segment_bytes = kRingSegmentBytes;
  ClientId caller;
  std::uint64_t number = 0;  // wire::Bind::attempt of its connection: one of another is late
  std::uint64_t slab_bytes = kRingSlabBytes;
  std::int64_t clock_ns = 0;  // the caller's monotonic clock
};
// host → caller, where it is taken with two descriptors: the HostPage, the slabs of large results.
struct RingReply {
  std::uint64_t magic = kRingMagic;
  std::int32_t code = 0;  // troupe::Code
  std::int32_t reserved = 0;
};

}  // namespace troupe::detail

#pragma once
// The fast road between a caller and an actor on one node: two byte rings and a few words in shared
// memory. Its format, and how it is offered.
//
// The socket between the two (wire/call_messages.h) stays: it binds, cancels, tells of deaths, and
// carries what does not fit into a ring. When a caller has used it for a while it makes a road and
// offers it over a second local connection (target "actor/ID/.road"), whose descriptors are the
// road's segment, the segment of its large arguments and an eventfd, the caller's bell; the host
// answers with the descriptor of its own HostPage. That connection then closes.
//
// Order. A call in the ring says how many calls went over the socket before it, and is not read
// before those have arrived; when one arrives over the socket, what the ring holds before it is
// read first. So the two roads together are one stream, whatever goes where.
//
// Trust. The peer has the cluster's token, but may be mad: every length and position is checked
// when it is read, once, and what a message says is copied before it is looked at. A road that
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
#include "runtime/base/unique_fd.h"
#include "runtime/memory/byte_ring.h"
#include "runtime/memory/segment.h"
#include "runtime/wire/types.h"

namespace troupe::detail {

// --- limits

// Calls answered on a connection before a road is made: most connections carry a handful.
inline constexpr std::uint64_t kRoadAfterCalls = 32;
// Roads of one process in each direction: 64 × (two rings and the slabs in use). Others keep to
// their sockets.
inline constexpr int kRoadsMax = 64;
inline constexpr std::size_t kRoadRingBytes = 256u << 10;  // each of the two
// Arguments and results of at most so many bytes go through the rings.
inline constexpr std::size_t kRoadInlineBytesMax = 64u << 10;
// Address space for large arguments; memory only where it was used lately: what nobody has used for
// kSlabIdleTime goes back to the machine.
inline constexpr std::size_t kRoadSlabBytes = 256u << 20;
inline constexpr std::size_t kRoadSlabGranuleBytes = 64u << 10;
inline constexpr Duration kSlabIdleTime = std::chrono::seconds(1);
// How long whoever waits looks again and again before it sleeps, where it may: a few times what a
// short call takes.
inline constexpr Duration kRoadSpin = std::chrono::microseconds(20);
// A sleep's end without a wake-up: what a mad peer can cost others.
inline constexpr Duration kRoadSleepMax = std::chrono::seconds(1);

// --- the shared pages

inline constexpr std::uint64_t kRoadMagic = 0x31444f5250555254;  // "TRUPROD1"
inline constexpr std::uint32_t kRoadVersion = 1;

using CpuSet = std::bitset<1024>;
// The CPUs that this thread may run on.
CpuSet cpus_of_thread();

// The first page of a road's segment; the ring of calls and the ring of answers follow it.
struct RoadPage {
  std::uint64_t magic;
  std::uint32_t version;
  // Of the caller: how long it wants to spin at most, and where.
  std::int64_t spin_ns;
  std::array<std::uint64_t, 16> cpus;
  memory::RingControl calls;
  memory::RingControl answers;
  // Whether the caller waits for answers (memory/wait_word.h). Its bell is the eventfd.
  alignas(128) std::atomic<std::uint32_t> caller_word;
  // Calls that the host has taken from the ring and from the socket since the road is there.
  alignas(128) std::atomic<std::uint64_t> taken;
};
inline constexpr std::size_t kRoadPageBytes = 4096;
inline constexpr std::size_t kRoadSegmentBytes = kRoadPageBytes + 2 * kRoadRingBytes;
static_assert(sizeof(RoadPage) <= kRoadPageBytes);
static_assert(kRoadInlineBytesMax * 2 < kRoadRingBytes);

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

struct RoadCall {
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
static_assert(sizeof(RoadCall) == 48);

struct RoadAnswer {
  std::uint32_t bytes;
  std::uint32_t failed;  // 0: the bytes are the result; 1: a Status (serialize.h)
  std::uint64_t sequence;
};
static_assert(sizeof(RoadAnswer) == 16);

constexpr std::size_t padded_bytes(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

// --- the offer

inline constexpr const char* kRoadPurpose = ".road";

// caller → host, with three descriptors: segment, slabs, bell.
struct RoadOffer {
  std::uint64_t magic = kRoadMagic;
  std::uint32_t version = kRoadVersion;
  std::uint32_t segment_bytes = kRoadSegmentBytes;
  ClientId caller;
  std::uint64_t number = 0;  // grows with each connection of the caller: an older offer is late
  std::uint64_t slab_bytes = kRoadSlabBytes;
  std::int64_t clock_ns = 0;  // the caller's monotonic clock
};
// host → caller, with the descriptor of the HostPage where it is taken.
struct RoadReply {
  std::uint64_t magic = kRoadMagic;
  std::int32_t code = 0;  // troupe::Code
  std::int32_t reserved = 0;
};

}  // namespace troupe::detail

#pragma once
// One peer's two byte streams, as the communicator's progress loop drives them. Internal.

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "troupe/unique_fd.h"

namespace troupe::collective {

// Messages and chunks in a stream are padded to this, so that elements read in place are aligned.
inline constexpr std::size_t kStreamAlignment = 64;
// What one reduction takes from each peer at a time: small enough that all of a step stays in the
// second-level cache, large enough to make the bookkeeping vanish.
inline constexpr std::size_t kChunkBytes = 64u << 10;
// A receive buffer or ring holds at least this many chunks, so that a chunk always fits while
// others are under way.
inline constexpr std::size_t kChunksBuffered = 4;

class Link {
 public:
  virtual ~Link() = default;
  // Takes as many bytes as fit now.
  virtual std::size_t send(std::span<const std::byte> bytes) = 0;
  // Lets go of what send() took and of the room that consume() freed; tells a sleeping peer.
  virtual void flush() = 0;
  // True while bytes that send() took wait for the kernel.
  virtual bool unsent() const = 0;
  // Received bytes, in place and contiguous; asks for more where fewer than `want` (at most a
  // padded chunk) are known: with 0 never.
  virtual std::span<const std::byte> readable(std::size_t want) = 0;
  virtual void consume(std::size_t count) = 0;
  // Moves up to out.size() received bytes to `out`.
  virtual std::size_t receive(std::span<std::byte> out) = 0;
  // The stream ended or is damaged. What was received before stays readable.
  virtual bool broken() const = 0;
  // How many bytes more than it has received in an operation a rank sends, while there is more to
  // receive: what is under way fills the way and no more.
  virtual std::size_t ahead_bytes() const = 0;
  // A reduced chunk follows so many chunks behind the unreduced ones, so that neither direction
  // waits for the other. The same at both ends; clearly less than ahead_bytes().
  virtual std::size_t lag_chunks() const = 0;
  // The peer said that it gives up, before it did anything with its memory (where there is shared
  // memory to say so in).
  virtual bool gave_up() const { return false; }
  // The next descriptor that the peer has passed; invalid where there is none.
  virtual UniqueFd take_descriptor() { return {}; }
  // The descriptor to watch for the peer's death.
  virtual int socket() const = 0;
  // For sleeping in poll(): the events that mean progress. receiving: for bytes that are missing;
  // sending: for room.
  virtual short poll_events(bool receiving, bool sending) const = 0;
  // Called after poll() said that `socket()` is readable.
  virtual void drain_doorbell() {}

  // Set by the monitor when the peer closed its end: 1 for the first that did, 2, …
  std::atomic<std::uint32_t> hung_up{0};
};

}  // namespace troupe::collective

#pragma once
// A single-producer, single-consumer ring of bytes in a shared segment.
//
// The ring's memory is mapped twice in a row, so that what is readable or writable is always one
// contiguous span, whatever the position: no copy at the wrap, and elements can be read in place.
// The producer publishes its position after the bytes; one that is killed in mid-write has
// published nothing. The ring itself never sleeps or wakes anybody (wait_word.h does); positions
// are sequentially consistent, so that whoever publishes and then looks for a sleeper, and whoever
// announces its sleep and then looks for bytes, cannot miss each other.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/status.h"
#include "runtime/memory/segment.h"

namespace troupe::memory {

// The two positions, each on its own cache-line pair; zeroed memory is an empty ring.
struct RingControl {
  alignas(128) std::atomic<std::uint64_t> written;
  alignas(128) std::atomic<std::uint64_t> consumed;
};
static_assert(sizeof(RingControl) == 256);

// Whether something is published that is not released. Any thread of either side; true too where
// the peer scribbled over the positions: the reader finds out.
inline bool ring_has_bytes(const RingControl& control) {
  return control.written.load(std::memory_order_seq_cst) !=
         control.consumed.load(std::memory_order_relaxed);
}

// The double mapping of `capacity` bytes at `offset` of a segment (whole pages both).
class MirroredMapping {
 public:
  static Result<MirroredMapping> map(const Segment& segment, std::size_t offset,
                                     std::size_t capacity);
  MirroredMapping() = default;
  MirroredMapping(MirroredMapping&& other) noexcept;
  MirroredMapping& operator=(MirroredMapping&& other) noexcept;
  ~MirroredMapping();
  std::byte* data() const { return data_; }
  std::size_t capacity() const { return capacity_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
};

// The producer's side. Not thread-safe; one per ring.
class RingWriter {
 public:
  RingWriter() = default;
  RingWriter(RingControl* control, MirroredMapping mapping);
  // How many bytes fit. Looks at the shared position again only where fewer than `want` were known
  // to.
  std::size_t space(std::size_t want);
  // Copies as many of `bytes` as fit; they become visible at publish().
  std::size_t write(std::span<const std::byte> bytes);
  // Makes all that was written visible. Returns false where there was nothing new.
  bool publish();

 private:
  RingControl* control_ = nullptr;
  MirroredMapping mapping_;
  std::uint64_t written_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t consumed_seen_ = 0;
};

// The consumer's side. Not thread-safe; one per ring.
class RingReader {
 public:
  RingReader() = default;
  RingReader(RingControl* control, MirroredMapping mapping);
  // All bytes published and not consumed, in place. Looks at the shared position again only where
  // fewer than `want` bytes were known.
  std::span<const std::byte> readable(std::size_t want);
  // Frees the first `count` of them; visible to the producer at release().
  void consume(std::size_t count) { consumed_ += count; }
  // Gives consumed room back. Returns false where there was nothing new.
  bool release();
  // True when the producer's position made no sense (its process scribbled over it).
  bool damaged() const { return damaged_; }

 private:
  RingControl* control_ = nullptr;
  MirroredMapping mapping_;
  std::uint64_t consumed_ = 0;
  std::uint64_t released_ = 0;
  std::uint64_t written_seen_ = 0;
  bool damaged_ = false;
};

}  // namespace troupe::memory

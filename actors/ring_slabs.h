#pragma once
// What is too large for a ring (call_ring.h): parts of a shared segment that one end of it writes
// and the other one reads in place. It is address space; memory is only where it was used lately.

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "actors/call_ring.h"
#include "runtime/memory/region_allocator.h"
#include "runtime/memory/segment.h"
#include "troupe/detail/mutex.h"

namespace troupe::detail {

// Of the end that writes. Thread-safe.
class RingSlabs {
 public:
  static Result<memory::Segment> make_segment(const char* name) {
    return memory::Segment::create(name, kRingSlabBytes);
  }
  explicit RingSlabs(memory::Segment segment)
      : segment_(std::move(segment)), regions_(kRingSlabBytes, kRingSlabGranuleBytes) {}

  // The offset of a part for `bytes` bytes; nothing where none is free.
  std::optional<std::size_t> take(std::size_t bytes) TROUPE_EXCLUDES(mutex_);
  void give_back(std::size_t offset, std::size_t bytes) TROUPE_EXCLUDES(mutex_);
  std::span<std::byte> part(std::size_t offset, std::size_t bytes) {
    return segment_.bytes().subspan(offset, bytes);
  }
  int fd() const { return segment_.fd(); }

  // Gives the memory of parts that are not in use back to the machine, unless some were taken since
  // it was last asked. False where there may be more to give back later: ask again.
  bool release_idle() TROUPE_EXCLUDES(mutex_);
  // Whether somebody has begun to ask that, until it was true. The first who looks begins.
  bool begin_releasing() TROUPE_EXCLUDES(mutex_);

 private:
  memory::Segment segment_;
  Mutex mutex_;
  memory::RegionAllocator regions_ TROUPE_GUARDED_BY(mutex_);
  std::size_t used_end_ TROUPE_GUARDED_BY(mutex_) = 0;  // nothing above was ever taken
  bool taken_ TROUPE_GUARDED_BY(mutex_) = false;        // since release_idle()
  bool releasing_ TROUPE_GUARDED_BY(mutex_) = false;
};

}  // namespace troupe::detail

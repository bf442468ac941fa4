#pragma once
// The memory in which an actor's saved state outlives its process: a memfd of fixed size with two
// slots, kept by the node and mapped by the actor's process, this one and the next.
//
// Layout, little-endian, offsets in bytes:
//   0    u64 magic "TRPSAVE2"   8 u64 slot capacity   (the rest of the first 4096 bytes is zero)
//   4096 slot 0: a slot header of 64 bytes, then `capacity` bytes: the state, then what was
//   answered then slot 1, at the next multiple of 4096
// Slot header: u64 number (0: never written), u64 size of the state, u64 type hash, u32 state
// version, u32 zero, u64 size of what was answered, u64 XXH3-64 over both and the fields before.
//
// A save writes the older slot and its header last; the newest slot whose hash is right counts. So
// a process killed in mid-save leaves the save before, and a save costs no system call. A state
// that outgrows the slots gets a new segment.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "actors/actor_class.h"
#include "runtime/base/status.h"
#include "runtime/base/unique_fd.h"
#include "runtime/memory/segment.h"

namespace troupe::detail {

// Not thread-safe.
class SavedStateSegment {
 public:
  // A new segment with room for states of `state_bytes` and some growth. kResourceExhausted.
  static Result<SavedStateSegment> create(std::size_t state_bytes);
  // The segment that an earlier process of the actor filled. kDataLoss or kProtocol
  // where it is none.
  static Result<SavedStateSegment> open(UniqueFd fd);

  // `bytes`: of the state and of what was answered together.
  bool fits(std::size_t bytes) const { return bytes <= capacity_; }
  // Requires that it fits.
  void write(const SavedState& state);
  // The last state that was written completely, if any.
  std::optional<SavedState> read() const;
  int fd() const { return segment_.fd(); }

 private:
  SavedStateSegment(memory::Segment segment, std::size_t capacity)
      : segment_(std::move(segment)), capacity_(capacity) {}
  std::byte* slot(int index);
  const std::byte* slot(int index) const;

  memory::Segment segment_;
  std::size_t capacity_ = 0;  // bytes of state per slot
};

}  // namespace troupe::detail

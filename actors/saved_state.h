#pragma once
// The memory in which an actor's saved state outlives its process: kept by the node and mapped by
// the actor's process, this one and the next.
//
// Two areas of records (runtime/memory/record_memory.h, "TRPSAVE4"), each with one: a StateHead, in
// the machine's own order, the state, and what was answered with it. A save writes the older area,
// and the newest whole one counts: a process killed in mid-save leaves the save before, and a save
// costs no system call. A state that outgrows the areas gets new memory.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/memory/record_memory.h"
#include "troupe/detail/actor_class.h"
#include "troupe/unique_fd.h"

namespace troupe::detail {

// Not thread-safe.
class SavedStateSegment {
 public:
  // New memory with room for states of `state_bytes` and some growth. kOutOfMemory,
  // kResourceExhausted.
  static Result<SavedStateSegment> create(std::size_t state_bytes);
  // The memory that an earlier process of the actor filled. kDataLoss or kProtocol
  // where it is none.
  static Result<SavedStateSegment> open(UniqueFd fd);

  // `bytes`: of the state and of what was answered together.
  bool fits(std::size_t bytes) const;
  // Requires that it fits.
  void write(const SavedState& state);
  // The last state that was written completely, if any.
  std::optional<SavedState> read() const;
  int fd() const { return records_.fd(); }

 private:
  explicit SavedStateSegment(memory::RecordMemory records) : records_(std::move(records)) {}

  memory::RecordMemory records_;
};

}  // namespace troupe::detail

#pragma once
// The memory in which an actor's saved state outlives its process: kept by the node and mapped by
// the actor's process, this one and the next.
//
// Two areas of records (runtime/memory/record_memory.h, "TRPSAVE5"). A record is a save: a
// StateHead, in the machine's own order, the state, and what was answered. The last whole one
// counts: a process killed in mid-save leaves the save before, and a save costs no system call. A
// state that outgrows the areas gets new memory.
//
// A save begins the older area. Where calls are run exactly once it may be added behind the save
// before instead, as long as there is room: then it says only what was answered since, and all that
// was answered is what the area's records say together. An area is so large that most saves are
// added, unless the state is many times as large as all the answers.

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
  // New memory with room for such states and some growth. kOutOfMemory, kResourceExhausted.
  static Result<SavedStateSegment> create(const SavedState& state);
  // The memory that an earlier process of the actor filled. kDataLoss or kProtocol
  // where it is none.
  static Result<SavedStateSegment> open(UniqueFd fd);

  // Whether an area takes this state, with all that was answered, and the saves behind it.
  bool fits(const SavedState& state) const;
  // A save with all that was answered. Requires that it fits.
  void write(const SavedState& state);
  // Whether there is room behind the save before.
  bool has_room(const SavedState& state) const;
  // A save with what was answered since the one before. Requires room.
  void append(const SavedState& state);
  // The last state that was written completely, if any, with all that was answered. kDataLoss: the
  // memory is damaged.
  Result<std::optional<SavedState>> read() const;
  int fd() const { return records_.fd(); }

 private:
  explicit SavedStateSegment(memory::RecordMemory records) : records_(std::move(records)) {}

  memory::RecordMemory records_;
};

}  // namespace troupe::detail

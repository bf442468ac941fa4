#pragma once
// What one rank updates, and where it lies in the rank's buffers.

#include <cstdint>

namespace troupe::train {

// What is updated at once under a log (a chunk): on a CPU a page of each of its parts, so that what
// the log saves of it is still in the nearest cache when it is updated; on a GPU what a block of
// threads holds in registers.
inline constexpr std::int64_t kUpdateElements = 1024;

// A stretch of flat positions. Offsets and sizes count elements. Ranges of a rank come in flat
// order; each is whole chunks.
struct UpdateRange {
  std::int64_t flat = 0;  // in the concatenation of all units
  // Of its first element in the buffers of parameters, of gradients, of each of the optimizer's
  // slots.
  std::int64_t parameters = 0, gradients = 0, slots = 0;
  std::int64_t elements = 0;
  friend bool operator==(const UpdateRange&, const UpdateRange&) = default;
};

// So many elements of a range, from its element `at` on.
constexpr UpdateRange part_of(const UpdateRange& range, std::int64_t at, std::int64_t elements) {
  return {.flat = range.flat + at,
          .parameters = range.parameters + at,
          .gradients = range.gradients + at,
          .slots = range.slots + at,
          .elements = elements};
}

}  // namespace troupe::train

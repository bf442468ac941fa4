#pragma once

#include <cstddef>
#include <cstdint>

namespace troupe {

// How much of an actor's output listeners get: a second's worth of lines and bytes, then nothing
// until the second is over. The node keeps the lines all the same.
struct OutputLimits {
  std::uint64_t lines_per_s = 1000;     // 0: without limit
  std::uint64_t bytes_per_s = 1 << 20;  // 0: without limit
  // What may wait for one driver or tool that reads more slowly; beyond that it is cut off, and
  // gets what is kept when it comes back. Of the node, not of an actor.
  std::size_t queue_bytes = 8 << 20;
};

}  // namespace troupe

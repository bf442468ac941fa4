#pragma once

#include <cstdint>

#include "troupe/clock.h"

namespace troupe {

// How a connection is slowed down for a test.
struct LinkConditions {
  Duration delay{0};
  Duration jitter{0};             // uniform in ± jitter; a chunk overtakes no other
  std::uint64_t bytes_per_s = 0;  // 0: as fast as it can
  bool stalled = false;           // nothing is read or delivered; nothing is lost either
  friend bool operator==(const LinkConditions&, const LinkConditions&) = default;
};

}  // namespace troupe

#pragma once
// How long things may take where nobody says otherwise.

#include "troupe/clock.h"

namespace troupe {

// A call to an actor, with everything that it waits for.
inline constexpr Duration kCallTimeout = std::chrono::seconds(60);
// A request to the head.
inline constexpr Duration kControlTimeout = std::chrono::seconds(10);

}  // namespace troupe

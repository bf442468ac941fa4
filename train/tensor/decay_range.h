#pragma once
// Which flat positions of a model's parameters decay.

#include <cstdint>

namespace troupe::train {

// A stretch of the flat concatenation of all units in which weight decay is on or off throughout.
// Ranges come in order, without gaps.
struct DecayRange {
  std::int64_t begin = 0, end = 0;
  bool decays = false;
};

}  // namespace troupe::train

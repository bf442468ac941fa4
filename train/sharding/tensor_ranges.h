#pragma once
// Ranges of units as ranges of tensors: how a rank's state is saved and loaded.

#include <cstdint>
#include <vector>

#include "train/sharding/rank_layout.h"

namespace troupe::train {

// Elements [begin, end) of a parameter's row-major order, at `offset` in a region's buffer.
struct TensorRange {
  const ParameterInfo* parameter = nullptr;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;
};

// All that a region holds, padding left out: what loading fills.
std::vector<TensorRange> held_ranges(const RankLayout& layout, Region region);
// The part of a region that this rank writes into a checkpoint: over all ranks every element of
// every parameter once. In the order of the units.
std::vector<TensorRange> saved_ranges(const RankLayout& layout, Region region);

}  // namespace troupe::train

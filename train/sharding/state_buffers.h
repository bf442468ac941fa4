#pragma once
// The buffers of a rank's regions.

#include <cstddef>
#include <span>

#include "runtime/memory/segment.h"
#include "train/sharding/rank_layout.h"
#include "train/tensor/dtype.h"

namespace troupe::train {

// In memory of whoever computes. parameters, exp_avg and exp_avg_sq are of `state`.
struct StateBuffers {
  DType state = DType::kF32;  // or kBF16
  // Which region's layout `parameters` has: kOptimizer where they are those alone that this rank
  // updates, apart from the ones that units are gathered from.
  Region parameters_region = Region::kParameters;
  std::span<std::byte> parameters;
  std::span<float> gradients;
  std::span<std::byte> exp_avg;
  std::span<std::byte> exp_avg_sq;
  // The frozen parameters of RankLayout::frozen(), in ComputeOptions::frozen.
  std::span<std::byte> frozen = {};
  // Where they lie, for ranks of the same machine to read in place; null: not in shared memory. The
  // same on all ranks.
  const memory::Segment* segment = nullptr;
};

}  // namespace troupe::train

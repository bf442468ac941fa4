#pragma once
// The buffers of a rank's regions.

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/memory/segment.h"
#include "train/optimizer/update_range.h"
#include "train/sharding/rank_layout.h"
#include "train/sharding/slot_place.h"
#include "train/tensor/dtype.h"

namespace troupe::train {

// A buffer that the optimizer keeps, see Optimizer::slots().
struct SlotBuffer {
  std::string_view name;
  std::span<std::byte> data;
  // Null: an element of the state's type for every one of the region kOptimizer.
  std::shared_ptr<const SlotPlace> place = nullptr;

  // Of what belongs to a range of one unit; nothing where it is not the range's turn.
  std::span<std::byte> part(const UpdateRange& range, DType state, const SlotUse& use) const;
};
// Without data: for an optimizer's slots, null where its rule is.
std::vector<SlotBuffer> places_of(const RankLayout& layout, const Optimizer& optimizer,
                                  DType state);

// In memory of whoever computes. Parameters are of `state`, slots, too, but for what their places
// say.
struct StateBuffers {
  DType state = DType::kF32;  // or kBF16
  // Which region's layout `parameters` has: kOptimizer where they are those alone that this rank
  // updates, apart from the ones that units are gathered from.
  Region parameters_region = Region::kParameters;
  std::span<std::byte> parameters;
  std::span<float> gradients;
  std::vector<SlotBuffer> slots;  // of the region kOptimizer each, in the optimizer's order
  // The frozen parameters of RankLayout::frozen(), in ComputeOptions::frozen.
  std::span<std::byte> frozen = {};
  // Where they lie, for ranks of the same machine to read in place; null: not in shared memory. The
  // same on all ranks.
  const memory::Segment* segment = nullptr;
};

}  // namespace troupe::train

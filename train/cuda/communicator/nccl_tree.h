#pragma once
// Sums of any number of ranks by the table's tree_sum, which takes TROUPE_CUDA_PARTS_MAX parts.

#include <cstddef>
#include <cstdint>
#include <span>

#include "train/cuda/device/table.h"

namespace troupe::train {

// With more parts than the table takes: how many sums of some of them come first. Those of the
// indices congruent to r modulo this power of two are subtrees of the fixed tree
// (runtime/collective/reduce_tree.h), so the bits are the same. Else 0.
std::size_t tree_classes(std::size_t parts);

// out (elements) of `type` = the sum of parts, F32 or BF16, summed in fp32, rounded once. classes:
// (tree_classes(parts.size()), elements) fp32, device. out may be a part. A TroupeCudaCode.
int tree_sum_of_any(const TroupeCudaTable& table, TroupeCudaStream* stream,
                    std::span<const void* const> parts, TroupeCudaType type, float* classes,
                    void* out, std::int64_t elements);

}  // namespace troupe::train

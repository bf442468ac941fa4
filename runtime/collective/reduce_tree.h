#pragma once
// The fixed binary tree by which values of n ranks are combined.
//
// T(r, d) combines the indices congruent to r modulo d below n: a single index is its value, else
//   T(r, d) = T(r, 2d) ⊕ T(r + d, 2d)       and the result is T(0, 1);
// the root splits on the lowest bit of the index (even indices left, odd ones right), and an index
// set whose right half is empty passes its left half on. n = 4: (x0 + x2) + (x1 + x3); n = 3:
// (x0 + x2) + x1. Leaves that are dealt round-robin to a power of two of owners (index = turn ·
// owners + owner) so form whole subtrees per owner.

#include <cstddef>
#include <span>

#include "runtime/collective/communicator.h"

namespace troupe::collective {

// Combines inputs[0..n) elementwise by the tree: inputs[i]: (count), out: (count) and exactly one
// of the inputs or disjoint from all. All aligned to their element's size.
void tree_reduce(std::span<const std::byte* const> inputs, std::byte* out, std::size_t count,
                 DataType type, ReduceOp op);

}  // namespace troupe::collective

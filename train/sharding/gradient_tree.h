#pragma once
// The fixed tree over the micro-batches of a step, for sums that do not depend on the world size.
//
// The tree is runtime/collective/reduce_tree.h's, over all micro-batches of the step (its leaves)
// instead of ranks: it splits on the lowest bit of the leaf's index. Leaves are visited in its
// post-order, so that a stack of about log2(leaves) partial sums is all that is kept; position p of
// the post-order is computed in turn p / world_size by rank p % world_size. A turn ends with an
// exchange in which every owner receives its part of each rank's leaf, and adds the leaves in
// order. So any number of ranks forms the same sums with the same number of additions in the same
// order. (Subtrees per rank, possible for powers of two, would need whole gradients per level; here
// the stack is as long as a shard.)

#include <cstdint>
#include <vector>

namespace troupe::train {

class GradientTree {
 public:
  explicit GradientTree(std::int64_t leaves);

  std::int64_t leaves() const { return static_cast<std::int64_t>(order_.size()); }
  // The leaf (micro-batch of the step) at a position of the post-order.
  std::int64_t leaf_at(std::int64_t position) const {
    return order_[static_cast<std::size_t>(position)];
  }
  // How many times the two uppermost partial sums are added once this position's leaf lies on the
  // stack.
  int merges_at(std::int64_t position) const { return merges_[static_cast<std::size_t>(position)]; }
  // Partial sums that lie on the stack at once, the newest leaf included.
  int depth() const { return depth_; }

 private:
  void visit(std::int64_t first, std::int64_t stride, std::int64_t leaves);

  std::vector<std::int64_t> order_;
  std::vector<int> merges_;
  int depth_ = 0;
};

}  // namespace troupe::train

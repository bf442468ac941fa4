#include "train/sharding/gradient_tree.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace troupe::train {

GradientTree::GradientTree(std::int64_t leaves) {
  TROUPE_CHECK(leaves > 0, "{} leaves", leaves);
  visit(0, 1, leaves);
  int height = 0;
  for (const int merges : merges_) {
    ++height;
    depth_ = std::max(depth_, height);
    height -= merges;
  }
}

void GradientTree::visit(std::int64_t first, std::int64_t stride, std::int64_t leaves) {
  if (first + stride >= leaves) {
    order_.push_back(first);
    merges_.push_back(0);
    return;
  }
  visit(first, 2 * stride, leaves);
  visit(first + stride, 2 * stride, leaves);
  ++merges_.back();
}

}  // namespace troupe::train

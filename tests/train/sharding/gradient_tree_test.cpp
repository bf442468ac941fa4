#include "train/sharding/gradient_tree.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "runtime/collective/reduce_tree.h"

namespace troupe::train {
namespace {

TEST_CASE("the stack machine forms the communicator's tree, with a logarithmic stack") {
  for (std::int64_t leaves = 1; leaves <= 40; ++leaves) {
    const GradientTree tree(leaves);
    REQUIRE(tree.leaves() == leaves);
    // Values whose sum depends on the order of additions.
    std::vector<float> values;
    for (std::int64_t i = 0; i < leaves; ++i)
      values.push_back(std::ldexp(1.0f + static_cast<float>(i) / 7.0f, static_cast<int>(i % 20)));
    std::vector<float> stack;
    std::size_t deepest = 0;
    for (std::int64_t position = 0; position < leaves; ++position) {
      stack.push_back(values[static_cast<std::size_t>(tree.leaf_at(position))]);
      deepest = std::max(deepest, stack.size());
      for (int merge = 0; merge < tree.merges_at(position); ++merge) {
        const float right = stack.back();
        stack.pop_back();
        stack.back() += right;
      }
    }
    REQUIRE(stack.size() == 1);
    CHECK(static_cast<int>(deepest) == tree.depth());
    CHECK(tree.depth() <= 1 + static_cast<int>(std::ceil(std::log2(leaves))));

    std::vector<const std::byte*> inputs;
    for (const float& value : values) inputs.push_back(reinterpret_cast<const std::byte*>(&value));
    float expected = 0;
    collective::tree_reduce(inputs, reinterpret_cast<std::byte*>(&expected), 1,
                            collective::DataType::kFloat32, collective::ReduceOp::kSum);
    CHECK(stack.front() == expected);
  }
}

}  // namespace
}  // namespace troupe::train

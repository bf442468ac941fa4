#include "train/trainer/kept_places.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

TEST_CASE("ranks of one node follow each other, whichever bundles lie there") {
  SeededRandom random(1);
  const NodeId a = NodeId::make(random), b = NodeId::make(random);
  CHECK(bundles_by_node({a, b, a, b}) == std::vector<std::int32_t>{0, 2, 1, 3});
  CHECK(bundles_by_node({b, a, a}) == std::vector<std::int32_t>{0, 1, 2});
  CHECK(bundles_by_node({a, a}) == std::vector<std::int32_t>{0, 1});
}

}  // namespace
}  // namespace troupe::train

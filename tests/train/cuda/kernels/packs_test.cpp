#include "train/cuda/kernels/packs.h"

#include <doctest/doctest.h>

namespace troupe::train::tests {
namespace {

TEST_CASE("positions of rows are found by either division") {
  const std::int64_t large = (std::int64_t{1} << 33) + 5;
  CHECK(cuda::row_column(large, 7).row == large / 7);
  CHECK(cuda::row_column(large, 7).column == large % 7);
  CHECK(cuda::row_column(4294967295, 10).row == 429496729);
  CHECK(cuda::row_column(4294967295, 10).column == 5);
}

}  // namespace
}  // namespace troupe::train::tests

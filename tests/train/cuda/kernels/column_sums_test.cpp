#include "train/cuda/kernels/column_sums.h"

#include <doctest/doctest.h>

#include <initializer_list>

namespace troupe::train::tests {
namespace {

TEST_CASE("rows are cut into parts that cover them") {
  for (const std::int64_t rows : {1, 32, 33, 4096, 1000003})
    for (const std::int64_t width : {1, 64, 896, 18944}) {
      const cuda::RowParts parts = cuda::row_parts(rows, width);
      CAPTURE(rows);
      CAPTURE(width);
      CHECK(parts.count * parts.rows_per_part >= rows);
      CHECK((parts.count - 1) * parts.rows_per_part < rows);
      CHECK(parts.count <= 512);
    }
}

}  // namespace
}  // namespace troupe::train::tests

#include "train/optimizer/matrices.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/cpu/gemm.h"
#include "train/cpu/singular.h"

namespace troupe::train {
namespace {

struct Products {
  Arena arena{1};
  GemmEngine engine{1, CpuOptions{}};
};

}  // namespace

Matrix transposed(const Matrix& matrix) {
  Matrix result(matrix.columns, matrix.rows);
  constexpr std::int64_t kBlock = 32;
  const float* const from = matrix.values.data();
  float* const to = result.values.data();
  for (std::int64_t r0 = 0; r0 < matrix.rows; r0 += kBlock)
    for (std::int64_t c0 = 0; c0 < matrix.columns; c0 += kBlock)
      for (std::int64_t r = r0; r < std::min(r0 + kBlock, matrix.rows); ++r)
        for (std::int64_t c = c0; c < std::min(c0 + kBlock, matrix.columns); ++c)
          to[c * matrix.rows + r] = from[r * matrix.columns + c];
  return result;
}

Matrix product(const Matrix& a, const Matrix& b, Transposed which, Factors factors) {
  thread_local Products products;
  const bool first = which == Transposed::kFirst, second = which == Transposed::kSecond;
  const std::int64_t depth = first ? a.rows : a.columns;
  TROUPE_CHECK(depth == (second ? b.columns : b.rows), "{} × {} times {} × {}", a.rows, a.columns,
               b.rows, b.columns);
  Matrix c(first ? a.columns : a.rows, second ? b.rows : b.columns);
  Gemm gemm{.m = c.rows, .n = c.columns, .k = depth};
  gemm.a = a.values.data();
  gemm.a_stride = a.columns;
  gemm.transpose_a = first;
  gemm.b = b.values.data();
  gemm.b_stride = b.columns;
  gemm.transpose_b = second;
  gemm.c = Elements(c.values.data(), DType::kF32);
  gemm.c_stride = c.columns;
  gemm.arithmetic = factors == Factors::kBf16 ? Arithmetic::kBf16 : Arithmetic::kFp32;
  products.engine.run(products.arena, gemm);
  return c;
}

namespace {

// Vectors one behind the other become the rows of a matrix.
Matrix rows_of(const std::vector<double>& vectors, std::int64_t columns) {
  Matrix result(static_cast<std::int64_t>(vectors.size()) / columns, columns);
  std::ranges::transform(vectors, result.values.begin(),
                         [](double value) { return static_cast<float>(value); });
  return result;
}

}  // namespace

Matrix left_singular_vectors(const Matrix& matrix, std::int64_t count) {
  const MatrixView view{.values = matrix.values, .rows = matrix.rows, .columns = matrix.columns};
  return transposed(rows_of(left_singular_vectors(view, count), matrix.rows));
}

Matrix right_singular_vectors(const Matrix& matrix, std::int64_t count) {
  // Read by columns, its rows are the columns of the transposed matrix.
  const MatrixView view{
      .values = matrix.values, .rows = matrix.columns, .columns = matrix.rows, .by_columns = true};
  return rows_of(left_singular_vectors(view, count), matrix.columns);
}

}  // namespace troupe::train

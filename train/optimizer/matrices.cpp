#include "train/optimizer/matrices.h"

#define EIGEN_NO_DEBUG  // no check of each element that is read: it is a tenth of the code
#include <Eigen/Eigenvalues>
#include <Eigen/QR>
#include <algorithm>
#include <cmath>

#include "runtime/base/check.h"
#include "train/cpu/gemm.h"

namespace troupe::train {
namespace {

using Dense = Eigen::MatrixXd;

// As in train/adapters: Eigen cuts products into blocks by the caches that it finds.
void fix_block_sizes() {
  static const bool fixed = [] {
    Eigen::setCpuCacheSizes(32 << 10, 512 << 10, 4 << 20);
    return true;
  }();
  static_cast<void>(fixed);
}

Dense dense(const Matrix& matrix) {
  using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  return Eigen::Map<const RowMajor>(matrix.values.data(), matrix.rows, matrix.columns)
      .cast<double>();
}

// Columns: the leading left singular vectors of what has no more rows than columns.
Dense leading(const Dense& wide, std::int64_t count) {
  const Eigen::SelfAdjointEigenSolver<Dense> solver(Dense(wide * wide.transpose()));
  return solver.eigenvectors().rowwise().reverse().leftCols(std::min(count, wide.rows()));
}

// The side that a decomposition by the shorter one does not give: orthonormal even where singular
// values are zero.
Dense other_side(const Dense& tall, const Dense& vectors) {
  const Dense images = tall * vectors;
  const Eigen::HouseholderQR<Dense> qr(images);
  Dense basis = qr.householderQ() * Dense::Identity(images.rows(), images.cols());
  for (Eigen::Index i = 0; i < basis.cols(); ++i)
    if (basis.col(i).dot(images.col(i)) < 0) basis.col(i) *= -1.0;
  return basis;
}

Dense left_vectors(const Dense& matrix, std::int64_t count) {
  fix_block_sizes();
  Dense vectors = matrix.rows() <= matrix.cols()
                      ? leading(matrix, count)
                      : other_side(matrix, leading(matrix.transpose(), count));
  for (Eigen::Index i = 0; i < vectors.cols(); ++i) {
    Eigen::Index largest = 0;
    vectors.col(i).cwiseAbs().maxCoeff(&largest);
    if (vectors(largest, i) < 0) vectors.col(i) *= -1.0;
  }
  return vectors;
}

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

Matrix left_singular_vectors(const Matrix& matrix, std::int64_t count) {
  const Dense vectors = left_vectors(dense(matrix), count);
  Matrix result(vectors.rows(), vectors.cols());
  for (std::int64_t r = 0; r < result.rows; ++r)
    for (std::int64_t c = 0; c < result.columns; ++c)
      result.values[static_cast<std::size_t>(r * result.columns + c)] =
          static_cast<float>(vectors(r, c));
  return result;
}

Matrix right_singular_vectors(const Matrix& matrix, std::int64_t count) {
  return transposed(left_singular_vectors(transposed(matrix), count));
}

}  // namespace troupe::train

#include "train/cpu/singular.h"

#define EIGEN_NO_DEBUG  // no check of each element that is read: it is a tenth of the code
#include <Eigen/Eigenvalues>
#include <Eigen/QR>
#include <algorithm>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

using Dense = Eigen::MatrixXd;

// Eigen cuts products into blocks by the caches that it finds, and so the order of sums.
void fix_block_sizes() {
  static const bool fixed = [] {
    Eigen::setCpuCacheSizes(32 << 10, 512 << 10, 4 << 20);
    return true;
  }();
  static_cast<void>(fixed);
}

Dense dense(const MatrixView& matrix) {
  using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  TROUPE_CHECK(static_cast<std::int64_t>(matrix.values.size()) == matrix.rows * matrix.columns,
               "{} values of {} × {}", matrix.values.size(), matrix.rows, matrix.columns);
  if (matrix.by_columns)
    return Eigen::Map<const Eigen::MatrixXf>(matrix.values.data(), matrix.rows, matrix.columns)
        .cast<double>();
  return Eigen::Map<const RowMajor>(matrix.values.data(), matrix.rows, matrix.columns)
      .cast<double>();
}

// Columns: the leading left singular vectors of what has no more rows than columns.
Dense leading(const Dense& wide, std::int64_t count) {
  const Eigen::SelfAdjointEigenSolver<Dense> solver(Dense(wide * wide.transpose()));
  return solver.eigenvectors().rowwise().reverse().leftCols(std::min(count, wide.rows()));
}

Dense orthonormal(const Dense& columns) {
  const Eigen::HouseholderQR<Dense> qr(columns);
  return qr.householderQ() * Dense::Identity(columns.rows(), columns.cols());
}

// What the vectors become, in the same directions: orthonormal even where singular values are zero.
Dense directions(const Dense& images) {
  Dense basis = orthonormal(images);
  for (Eigen::Index i = 0; i < basis.cols(); ++i)
    if (basis.col(i).dot(images.col(i)) < 0) basis.col(i) *= -1.0;
  return basis;
}

struct Parts {
  Dense left, right;
  Eigen::VectorXd values;
};

Parts decompose(const Dense& matrix, std::int64_t count) {
  if (matrix.rows() < matrix.cols()) {
    const Dense left = leading(matrix, count), images = matrix.transpose() * left;
    return {left, directions(images), images.colwise().norm()};
  }
  const Dense right = leading(matrix.transpose(), count), images = matrix * right;
  return {directions(images), right, images.colwise().norm()};
}

Parts decompose_low_rank(const Dense& matrix, std::int64_t count, std::int64_t iterations,
                         std::span<const float> start) {
  if (matrix.rows() < matrix.cols()) {
    Parts of_transposed = decompose_low_rank(matrix.transpose(), count, iterations, start);
    std::swap(of_transposed.left, of_transposed.right);
    return of_transposed;
  }
  Dense basis = orthonormal(matrix * dense({start, matrix.cols(), count, true}));
  for (std::int64_t i = 0; i < iterations; ++i) {
    basis = orthonormal(matrix.transpose() * basis);
    basis = orthonormal(matrix * basis);
  }
  Parts small = decompose(basis.transpose() * matrix, count);
  small.left = basis * small.left;
  return small;
}

std::vector<double> flat(const Dense& matrix) {
  return {matrix.data(), matrix.data() + matrix.size()};
}

bool points_down(const Dense& vectors, Eigen::Index i) {
  Eigen::Index largest = 0;
  vectors.col(i).cwiseAbs().maxCoeff(&largest);
  return vectors(largest, i) < 0;
}

SingularParts with_signs(Parts parts) {
  for (Eigen::Index i = 0; i < parts.right.cols(); ++i) {
    if (!points_down(parts.right, i)) continue;
    parts.right.col(i) *= -1.0;
    parts.left.col(i) *= -1.0;
  }
  return {.left = flat(parts.left), .values = flat(parts.values), .right = flat(parts.right)};
}

}  // namespace

SingularParts singular_parts(const MatrixView& matrix, std::int64_t count) {
  fix_block_sizes();
  return with_signs(decompose(dense(matrix), count));
}

SingularParts low_rank_singular_parts(const MatrixView& matrix, std::int64_t count,
                                      std::int64_t iterations, std::span<const float> start) {
  fix_block_sizes();
  return with_signs(decompose_low_rank(dense(matrix), count, iterations, start));
}

std::vector<double> left_singular_vectors(const MatrixView& matrix, std::int64_t count) {
  fix_block_sizes();
  const Dense values = dense(matrix);
  Dense vectors = values.rows() <= values.cols()
                      ? leading(values, count)
                      : directions(values * leading(values.transpose(), count));
  for (Eigen::Index i = 0; i < vectors.cols(); ++i)
    if (points_down(vectors, i)) vectors.col(i) *= -1.0;
  return flat(vectors);
}

}  // namespace troupe::train

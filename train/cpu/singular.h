#pragma once
// Singular value decompositions of fp32 matrices, computed in double in the calling thread. Results
// do not depend on which thread computes them, nor on the machine's caches.

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::train {

struct MatrixView {
  std::span<const float> values;
  std::int64_t rows = 0, columns = 0;
  bool by_columns = false;  // columns lie one behind the other; else rows do
};

// The leading singular values, the greatest first, and their vectors, one behind the other: `left`
// of `rows` elements each, `right` of `columns`. The largest element of each right vector is
// positive.
struct SingularParts {
  std::vector<double> left, values, right;
};
// The `count` leading ones; `count` is at most the shorter side. By the eigenvectors of the shorter
// side's products: singular values below 1e-8 of the largest one have no correct digits.
SingularParts singular_parts(const MatrixView& matrix, std::int64_t count);
// As torch.svd_lowrank(matrix, count, iterations), from `start`, which has `count` random vectors
// of the shorter side's length, one behind the other (Halko, Martinsson and Tropp 2011,
// algorithm 5.1 behind 4.4).
SingularParts low_rank_singular_parts(const MatrixView& matrix, std::int64_t count,
                                      std::int64_t iterations, std::span<const float> start);

// The `count` leading left singular vectors alone, at most as many as there are, one behind the
// other; the largest element of each is positive.
std::vector<double> left_singular_vectors(const MatrixView& matrix, std::int64_t count);

}  // namespace troupe::train

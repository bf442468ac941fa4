#pragma once
// Products of fp32 matrices and their leading singular vectors, in the calling thread: private to
// this folder. Results do not depend on which thread computes them.

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::train {

// Rows lie one behind the other.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<float> values;

  Matrix() = default;
  Matrix(std::int64_t row_count, std::int64_t column_count)
      : rows(row_count),
        columns(column_count),
        values(static_cast<std::size_t>(row_count * column_count)) {}
};

Matrix transposed(const Matrix& matrix);

// A·B, A·Bᵀ, Aᵀ·B.
enum class Transposed { kNeither, kSecond, kFirst };
// What its elements are rounded to before they are multiplied; sums are fp32.
enum class Factors { kFp32, kBf16 };
Matrix product(const Matrix& a, const Matrix& b, Transposed which = Transposed::kNeither,
               Factors factors = Factors::kFp32);

// The `count` leading singular vectors, at most as many as there are: left ones as columns
// (rows, count), or right ones as rows (count, columns). Computed in double; of the two signs of a
// vector the one whose largest element is positive.
Matrix left_singular_vectors(const Matrix& matrix, std::int64_t count);
Matrix right_singular_vectors(const Matrix& matrix, std::int64_t count);

}  // namespace troupe::train

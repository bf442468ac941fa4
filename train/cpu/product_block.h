#pragma once
// The innermost loop of products, for one instruction set: private to train/cpu, for sources that
// are compiled with contraction (CMakeLists.txt), so that acc + a·b is one instruction.

#include <cstdint>
#include <cstring>

#include "train/cpu/small_product.h"
#include "train/tensor/vectorize.h"

namespace troupe::train::kernels {

template <int Lanes>
struct VectorOf {
  using Type __attribute__((vector_size(Lanes * sizeof(float)))) = float;
  using Mask __attribute__((vector_size(Lanes * sizeof(float)))) = std::int32_t;
};

// Not by value: a vector's way through a call depends on the instruction set.
template <typename Vector>
TROUPE_INLINE void load(const float* from, Vector& to) {
  std::memcpy(&to, from, sizeof to);
}

// Rows × Columns·Lanes elements of C, kept in registers.
template <int Lanes, int Rows, int Columns>
TROUPE_INLINE void multiply_block(const SmallProduct& p, std::int64_t row, std::int64_t column) {
  using Vector = typename VectorOf<Lanes>::Type;
  const float* a = p.a + row * p.a_row;
  const float* b = p.b + column;
  float* c = p.c + row * p.c_stride + column;
  Vector sums[Rows][Columns];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) {
      sums[i][j] = Vector{};
      // C is on its way while the sums grow.
      if (p.accumulate)
        load(c + i * p.c_stride + j * Lanes, sums[i][j]);
      else
        __builtin_prefetch(c + i * p.c_stride + j * Lanes, 1);
    }
  for (std::int64_t k = 0; k < p.k; ++k) {
    Vector right[Columns];
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) load(b + j * Lanes, right[j]);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const float left = a[i * p.a_row];
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j) sums[i][j] += left * right[j];
    }
    a += p.a_column;
    b += p.b_stride;
  }
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j)
      std::memcpy(c + i * p.c_stride + j * Lanes, &sums[i][j], sizeof(Vector));
}

// All rows of Columns·Lanes columns.
template <int Lanes, int Rows, int Columns>
TROUPE_INLINE void multiply_columns(const SmallProduct& p, std::int64_t column) {
  std::int64_t row = 0;
  for (; row + Rows <= p.m; row += Rows) multiply_block<Lanes, Rows, Columns>(p, row, column);
  if (row + 4 <= p.m && Rows > 4) {
    multiply_block<Lanes, 4, Columns>(p, row, column);
    row += 4;
  }
  for (; row < p.m; ++row) multiply_block<Lanes, 1, Columns>(p, row, column);
}

}  // namespace troupe::train::kernels

#pragma once
// The innermost loop of products, for one instruction set: private to train/cpu, for sources that
// are compiled with contraction (CMakeLists.txt), so that acc + a·b is one instruction.

#include <cstdint>

#include "train/cpu/small_product.h"
#include "train/cpu/vectors.h"
#include "train/tensor/vectorize.h"

// Clang refuses registers of an instruction set that the template itself is not compiled for, and
// makes good code of the expressions.
#if defined(__x86_64__) && !defined(__clang__)
#define TROUPE_NAMES_INSTRUCTIONS
#endif

namespace troupe::train::kernels {

// sum += left·right, rounded once. By name where there is an instruction: of the expression, GCC 12
// makes forms that overwrite a factor, and then copies and spills for what it overwrote.
template <int Lanes, typename Vector>
TROUPE_INLINE void add_product(Vector& sum, const Vector& left, const Vector& right) {
#if defined(TROUPE_NAMES_INSTRUCTIONS)
  if constexpr (Lanes >= 8) {
    Vector own = sum;
    asm volatile("vfmadd231ps %2, %1, %0" : "+v"(own) : "v"(left), "v"(right));
    sum = own;
    return;
  }
#endif
  sum += left * right;
}

// All lanes *from.
template <int Lanes, typename Vector>
TROUPE_INLINE void fill(const float* from, Vector& to) {
#if defined(TROUPE_NAMES_INSTRUCTIONS)
  if constexpr (Lanes >= 8) {
    Vector own;
    asm volatile("vbroadcastss %1, %0" : "=v"(own) : "m"(*from));
    to = own;
    return;
  }
#endif
  to = *from - Vector{};
}

// What a block fetches into caches while it is computed: nothing.
struct NothingAhead {
  template <int Lanes, int Columns>
  TROUPE_INLINE void fetch() {}
};

// Rows × Columns·Lanes elements of C, kept in registers. ahead.fetch() is called once for kStep
// terms.
template <int Lanes, int Rows, int Columns, typename Ahead>
TROUPE_INLINE void multiply_block(const SmallProduct& p, std::int64_t row, std::int64_t column,
                                  Ahead& to_fetch) {
  using Vector = typename VectorOf<Lanes>::Type;
  constexpr std::int64_t kStep = 4;
  const float* a = p.a + row * p.a_row;
  const float* b = p.b + column;
  float* c = p.c + row * p.c_stride + column;
  // A copy: what is stored to C cannot change it.
  Ahead ahead = to_fetch;
  Vector sums[Rows][Columns];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) {
      sums[i][j] = Vector{};
      // C is on its way while the sums grow.
      if (p.accumulate)
        load_vector(c + i * p.c_stride + j * Lanes, sums[i][j]);
      else
        __builtin_prefetch(c + i * p.c_stride + j * Lanes, 1);
    }
  const auto add_term = [&]() TROUPE_INLINE_LAMBDA {
    Vector right[Columns];
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) load_vector(b + j * Lanes, right[j]);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      Vector left;
      fill<Lanes>(a + i * p.a_row, left);
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j) add_product<Lanes>(sums[i][j], left, right[j]);
    }
    a += p.a_column;
    b += p.b_stride;
  };
  std::int64_t k = 0;
  for (; k + kStep <= p.k; k += kStep) {
#pragma GCC unroll 4
    for (std::int64_t step = 0; step < kStep; ++step) add_term();
    ahead.template fetch<Lanes, Columns>();
  }
  for (; k < p.k; ++k) add_term();
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < Columns; ++j) store_vector(sums[i][j], c + i * p.c_stride + j * Lanes);
  to_fetch = ahead;
}

// All rows of Columns·Lanes columns.
template <int Lanes, int Rows, int Columns, typename Ahead>
TROUPE_INLINE void multiply_columns(const SmallProduct& p, std::int64_t column, Ahead& ahead) {
  std::int64_t row = 0;
  for (; row + Rows <= p.m; row += Rows)
    multiply_block<Lanes, Rows, Columns>(p, row, column, ahead);
  if (row + 4 <= p.m && Rows > 4) {
    multiply_block<Lanes, 4, Columns>(p, row, column, ahead);
    row += 4;
  }
  for (; row < p.m; ++row) multiply_block<Lanes, 1, Columns>(p, row, column, ahead);
}

}  // namespace troupe::train::kernels

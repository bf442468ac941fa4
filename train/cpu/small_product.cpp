#include "train/cpu/small_product.h"

#include <cstring>

#include "train/cpu/isa.h"
#include "train/cpu/product_block.h"

namespace troupe::train::kernels {
namespace {

// Columns that fill no vector of the smallest kind: as one all the same, so that they round alike.
template <int Lanes>
TROUPE_INLINE void multiply_last_columns(const SmallProduct& p, std::int64_t column) {
  using Vector = typename VectorOf<Lanes>::Type;
  const auto bytes = static_cast<std::size_t>(p.n - column) * sizeof(float);
  for (std::int64_t row = 0; row < p.m; ++row) {
    float* c = p.c + row * p.c_stride + column;
    Vector sums{}, right{};
    if (p.accumulate) std::memcpy(&sums, c, bytes);
    for (std::int64_t k = 0; k < p.k; ++k) {
      std::memcpy(&right, p.b + k * p.b_stride + column, bytes);
      sums += p.a[row * p.a_row + k * p.a_column] * right;
    }
    std::memcpy(c, &sums, bytes);
  }
}

// The columns from `column` on, fewer than 2·Lanes, by vectors of Lanes and of halves of that.
template <int Lanes, int Rows>
TROUPE_INLINE void multiply_rest(const SmallProduct& p, std::int64_t column) {
  NothingAhead nothing;
  if (p.n - column >= Lanes) {
    multiply_columns<Lanes, Rows, 1>(p, column, nothing);
    column += Lanes;
  }
  if constexpr (Lanes > 4) {
    if (column < p.n) multiply_rest<Lanes / 2, Rows>(p, column);
  } else {
    if (column < p.n) multiply_last_columns<Lanes>(p, column);
  }
}

// With Rows·3 sums, three vectors of B and one of A, all registers are in use.
template <int Lanes, int Rows>
TROUPE_INLINE void multiply_with(const SmallProduct& p) {
  const std::int64_t whole = p.n / Lanes;
  std::int64_t column = 0;
  NothingAhead nothing;
  for (std::int64_t left = whole; left > 0;) {
    // Four are two and two, not three and one.
    if (left == 1) {
      multiply_columns<Lanes, Rows, 1>(p, column * Lanes, nothing);
      left -= 1, column += 1;
    } else if (left == 2 || left == 4) {
      multiply_columns<Lanes, Rows, 2>(p, column * Lanes, nothing);
      left -= 2, column += 2;
    } else {
      multiply_columns<Lanes, Rows, 3>(p, column * Lanes, nothing);
      left -= 3, column += 3;
    }
  }
  if (whole * Lanes == p.n) return;
  if constexpr (Lanes > 4) {
    multiply_rest<Lanes / 2, Rows>(p, whole * Lanes);
  } else {
    multiply_last_columns<Lanes>(p, whole * Lanes);
  }
}

#if defined(__x86_64__)
__attribute__((target("avx512f,fma"))) void multiply_avx512(const SmallProduct& p) {
  multiply_with<16, 8>(p);
}
__attribute__((target("avx2,fma"))) void multiply_avx2(const SmallProduct& p) {
  multiply_with<8, 4>(p);
}
#endif
void multiply_plain(const SmallProduct& p) { multiply_with<4, 4>(p); }

auto pick_multiply() {
#if defined(__x86_64__)
  if (cpu_isa_level() >= kCpuAvx512) return multiply_avx512;
  if (cpu_isa_level() >= kCpuAvx2) return multiply_avx2;
#endif
  return multiply_plain;
}

}  // namespace

void multiply(const SmallProduct& product) {
  static const auto picked = pick_multiply();
  picked(product);
}

}  // namespace troupe::train::kernels

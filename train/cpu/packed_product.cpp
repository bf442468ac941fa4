#include "train/cpu/packed_product.h"

#include <algorithm>
#include <cstring>

#include "train/cpu/isa.h"
#include "train/cpu/product_block.h"

namespace troupe::train::kernels {
namespace {

// Terms of a sum that are added before C is written: a part of B of 288 columns is 576 KiB.
constexpr std::int64_t kDepthMax = 512;
constexpr std::int64_t kPackedFloatsOfB = 288 * kDepthMax;
// Rows of a transposed A that are copied at once: two cache lines of each of its rows.
constexpr std::int64_t kRowsOfA = 32;
// The widest panel, and the most rows of a block (product_block.h).
constexpr std::int64_t kPanelMax = 48, kBlockRows = 8;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Terms at once: parts of about the same size.
std::int64_t depth_of(std::int64_t k) {
  return std::min(k, ceil_div(ceil_div(k, ceil_div(k, kDepthMax)), 16) * 16);
}

// Lanes × Lanes elements, rows to columns, by exchanges at distances 1, 2, 4 ….
template <int Lanes>
TROUPE_INLINE void transpose_block(const float* from, std::int64_t from_stride, float* to,
                                   std::int64_t to_stride) {
  using Vector = typename VectorOf<Lanes>::Type;
  using Mask = typename VectorOf<Lanes>::Mask;
  Vector rows[Lanes];
#pragma GCC unroll 16
  for (int i = 0; i < Lanes; ++i) load(from + i * from_stride, rows[i]);
#pragma GCC unroll 4
  for (int distance = 1; distance < Lanes; distance *= 2) {
    Mask low{}, high{};
#pragma GCC unroll 16
    for (int j = 0; j < Lanes; ++j) {
      low[j] = (j & distance) == 0 ? j : j - distance + Lanes;
      high[j] = (j & distance) == 0 ? j + distance : j + Lanes;
    }
#pragma GCC unroll 16
    for (int i = 0; i < Lanes; ++i) {
      if ((i & distance) != 0) continue;
      const Vector upper = rows[i], lower = rows[i + distance];
      rows[i] = __builtin_shuffle(upper, lower, low);
      rows[i + distance] = __builtin_shuffle(upper, lower, high);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Lanes; ++i) std::memcpy(to + i * to_stride, &rows[i], sizeof(Vector));
}

// The panel of B's columns [column, column + width) and rows [k0, k0 + depth): (depth, panel
// width), with zeros beyond `width`.
template <int Lanes>
TROUPE_INLINE void pack_panel(const Gemm& g, std::int64_t k0, std::int64_t depth,
                              std::int64_t column, std::int64_t width, std::int64_t panel,
                              float* out) {
  const auto* b = static_cast<const float*>(g.b);
  if (!g.transpose_b) {
    b += k0 * g.b_stride + column;
    if (width == 3 * Lanes) {
      for (std::int64_t k = 0; k < depth; ++k)
        std::memcpy(out + k * panel, b + k * g.b_stride, 3 * Lanes * sizeof(float));
      return;
    }
    const auto bytes = static_cast<std::size_t>(width) * sizeof(float);
    for (std::int64_t k = 0; k < depth; ++k) {
      std::memcpy(out + k * panel, b + k * g.b_stride, bytes);
      for (std::int64_t j = width; j < panel; ++j) out[k * panel + j] = 0.0f;
    }
    return;
  }
  b += column * g.b_stride + k0;
  for (std::int64_t j = 0; j < panel; j += Lanes) {
    const bool whole = j + Lanes <= width;
    std::int64_t k = 0;
    for (; whole && k + Lanes <= depth; k += Lanes)
      transpose_block<Lanes>(b + j * g.b_stride + k, g.b_stride, out + k * panel + j, panel);
    for (; k < depth; ++k)
      for (std::int64_t i = j; i < j + Lanes; ++i)
        out[k * panel + i] = i < width ? b[i * g.b_stride + k] : 0.0f;
  }
}

// Rows of a transposed A, a block's side by side: (blocks, depth, Rows), with zeros beyond `rows`.
// What lies behind them is wanted next: by then it is in a cache.
template <int Rows>
TROUPE_INLINE void pack_rows(const Gemm& g, std::int64_t row, std::int64_t rows, std::int64_t k0,
                             std::int64_t depth, float* out) {
  const float* a = static_cast<const float*>(g.a) + k0 * g.a_stride + row;
  if (rows == kRowsOfA) {
    for (std::int64_t k = 0; k < depth; ++k) {
      const float* from = a + k * g.a_stride;
      __builtin_prefetch(from + kRowsOfA);
      __builtin_prefetch(from + kRowsOfA + 16);
#pragma GCC unroll 8
      for (std::int64_t i = 0; i < kRowsOfA; i += Rows)
        std::memcpy(out + i * depth + k * Rows, from + i, Rows * sizeof(float));
    }
    return;
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    const float* from = a + k * g.a_stride;
    for (std::int64_t i = 0; i < rows; ++i)
      out[i / Rows * Rows * depth + k * Rows + i % Rows] = from[i];
    for (std::int64_t i = rows; i % Rows != 0; ++i)
      out[i / Rows * Rows * depth + k * Rows + i % Rows] = 0.0f;
  }
}

// One panel. Columns that C lacks are computed beside it.
template <int Lanes, int Rows>
TROUPE_INLINE void multiply_panel(SmallProduct p) {
  if (p.n == 3 * Lanes) return multiply_columns<Lanes, Rows, 3>(p, 0);
  float beside[kBlockRows * kPanelMax];
  float* c = p.c;
  const std::int64_t c_stride = p.c_stride, rows = p.m;
  const auto bytes = static_cast<std::size_t>(p.n) * sizeof(float);
  p.c = beside, p.c_stride = 3 * Lanes;
  for (std::int64_t row = 0; row < rows; row += Rows) {
    p.m = std::min<std::int64_t>(Rows, rows - row);
    for (std::int64_t i = 0; i < p.m && p.accumulate; ++i)
      std::memcpy(beside + i * p.c_stride, c + (row + i) * c_stride, bytes);
    if (p.n > 2 * Lanes)
      multiply_columns<Lanes, Rows, 3>(p, 0);
    else if (p.n > Lanes)
      multiply_columns<Lanes, Rows, 2>(p, 0);
    else
      multiply_columns<Lanes, Rows, 1>(p, 0);
    for (std::int64_t i = 0; i < p.m; ++i)
      std::memcpy(c + (row + i) * c_stride, beside + i * p.c_stride, bytes);
    p.a += Rows * p.a_row;
  }
}

template <int Lanes, int Rows>
TROUPE_INLINE void multiply_with(const Gemm& g, float* scratch) {
  constexpr std::int64_t kPanel = 3 * Lanes;
  float* packed_b = scratch;
  float* packed_a = packed_b + kPackedFloatsOfB;
  const std::int64_t depth_step = depth_of(g.k), column_step = packed_columns(g.k);
  const auto* a = static_cast<const float*>(g.a);
  for (std::int64_t n0 = 0; n0 < g.n; n0 += column_step) {
    const std::int64_t columns = std::min(column_step, g.n - n0);
    for (std::int64_t k0 = 0; k0 < g.k; k0 += depth_step) {
      const std::int64_t depth = std::min(depth_step, g.k - k0);
      for (std::int64_t j = 0; j < columns; j += kPanel)
        pack_panel<Lanes>(g, k0, depth, n0 + j, std::min(kPanel, columns - j), kPanel,
                          packed_b + j * depth);
      SmallProduct p{.k = depth,
                     .b_stride = kPanel,
                     .c_stride = g.c_stride,
                     .accumulate = g.accumulate || k0 > 0};
      for (std::int64_t row = 0; row < g.m; row += kRowsOfA) {
        const std::int64_t rows = std::min(kRowsOfA, g.m - row);
        if (g.transpose_a) pack_rows<Rows>(g, row, rows, k0, depth, packed_a);
        for (std::int64_t i = 0; i < rows; i += Rows) {
          p.m = std::min<std::int64_t>(Rows, rows - i);
          p.a = g.transpose_a ? packed_a + i * depth : a + (row + i) * g.a_stride + k0;
          p.a_row = g.transpose_a ? 1 : g.a_stride;
          p.a_column = g.transpose_a ? Rows : 1;
          for (std::int64_t j = 0; j < columns; j += kPanel) {
            p.n = std::min(kPanel, columns - j);
            p.b = packed_b + j * depth;
            p.c = g.c + (row + i) * g.c_stride + n0 + j;
            multiply_panel<Lanes, Rows>(p);
          }
        }
      }
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx512f,fma"))) void multiply_avx512(const Gemm& g, float* scratch) {
  multiply_with<16, 8>(g, scratch);
}
__attribute__((target("avx2,fma"))) void multiply_avx2(const Gemm& g, float* scratch) {
  multiply_with<8, 4>(g, scratch);
}
#endif

int level() {
  static const int picked = cpu_isa_level();
  return picked;
}

}  // namespace

bool has_packed_products() { return level() >= kCpuAvx2; }

std::int64_t packed_columns(std::int64_t k) {
  return std::max(kPanelMax, kPackedFloatsOfB / depth_of(k) / kPanelMax * kPanelMax);
}

std::size_t packed_scratch_floats() {
  return static_cast<std::size_t>(kPackedFloatsOfB + kRowsOfA * kDepthMax);
}

void multiply_packed(const Gemm& gemm, float* scratch) {
#if defined(__x86_64__)
  if (level() >= kCpuAvx512) return multiply_avx512(gemm, scratch);
  multiply_avx2(gemm, scratch);
#endif
}

}  // namespace troupe::train::kernels

#include "train/cpu/packed_product.h"

#include <algorithm>
#include <cstring>

#include "train/cpu/division.h"
#include "train/cpu/isa.h"
#include "train/cpu/lines_ahead.h"
#include "train/cpu/product_block.h"

namespace troupe::train::kernels {
namespace {

// Terms of a sum that are added before C is written: a part of B of 288 columns is 576 KiB.
constexpr std::int64_t kDepthMax = 512;
constexpr std::int64_t kPackedFloatsOfB = 288 * kDepthMax;
// Rows of a transposed A that are copied at once: two cache lines of each of its rows.
constexpr std::int64_t kRowsOfA = 32;
// Rows in memory that are fetched before they are copied: those of narrow pieces are not foreseen.
constexpr std::int64_t kDepthsAhead = 16;
// The widest panel, and the most rows of a block (product_block.h).
constexpr std::int64_t kPanelMax = 48, kBlockRows = 8;

// Terms at once: parts of about the same size.
std::int64_t depth_of(std::int64_t k) {
  return std::min(k, ceil_to(ceil_div(k, ceil_div(k, kDepthMax)), 16));
}

// The elements of `left` and `right`, which count on from it, that `which` names.
template <int Lanes, typename Vector, typename Mask>
TROUPE_INLINE void choose(const Vector& left, const Vector& right, const Mask& which, Vector& out) {
#if defined(__clang__)
  for (int i = 0; i < Lanes; ++i)
    out[i] = which[i] < Lanes ? left[which[i]] : right[which[i] - Lanes];
#else
  out = __builtin_shuffle(left, right, which);
#endif
}

// Lanes × Lanes elements, rows to columns, by exchanges at distances 1, 2, 4 ….
template <int Lanes>
TROUPE_INLINE void transpose_block(const float* from, std::int64_t from_stride, float* to,
                                   std::int64_t to_stride) {
  using Vector = typename VectorOf<Lanes>::Type;
  using Mask = typename VectorOf<Lanes>::Mask;
  Vector rows[Lanes];
#pragma GCC unroll 16
  for (int i = 0; i < Lanes; ++i) load_vector(from + i * from_stride, rows[i]);
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
      choose<Lanes>(upper, lower, low, rows[i]);
      choose<Lanes>(upper, lower, high, rows[i + distance]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Lanes; ++i) store_vector(rows[i], to + i * to_stride);
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
      for (std::int64_t k = 0; k < depth; ++k) {
        const float* from = b + k * g.b_stride;
#pragma GCC unroll 3
        for (std::int64_t line = 0; line < 3 * Lanes; line += kLineElements)
          __builtin_prefetch(from + kDepthsAhead * g.b_stride + line);
        std::memcpy(out + k * panel, from, 3 * Lanes * sizeof(float));
      }
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

// What is fetched while blocks are multiplied: the part of C that the next block begins with, then
// lines of an operand.
class BlockAhead {
 public:
  BlockAhead() = default;
  BlockAhead(const float* begin, std::int64_t rows, std::int64_t width, std::int64_t stride)
      : lines_(begin, rows, width, stride, sizeof(float)) {}

  void next_block(const float* c, std::int64_t c_stride, std::int64_t rows) {
    c_ = c, c_stride_ = c_stride, c_rows_ = rows;
  }

  template <int Lanes, int Columns>
  TROUPE_INLINE void fetch() {
    if (c_rows_ > 0) {
#pragma GCC unroll 4
      for (int j = 0; j < Columns; ++j) __builtin_prefetch(c_ + j * Lanes, 1);
      c_ += c_stride_;
      --c_rows_;
      return;
    }
    lines_.fetch();
  }

 private:
  LinesAhead lines_;
  const float* c_ = nullptr;
  std::int64_t c_stride_ = 0, c_rows_ = 0;
};

// Rows of a transposed A, a block's side by side: (blocks, depth, Rows), with zeros beyond `rows`.
template <int Rows>
TROUPE_INLINE void pack_rows(const Gemm& g, std::int64_t row, std::int64_t rows, std::int64_t k0,
                             std::int64_t depth, float* out) {
  const float* a = static_cast<const float*>(g.a) + k0 * g.a_stride + row;
  if (rows == kRowsOfA) {
    for (std::int64_t k = 0; k < depth; ++k) {
      const float* from = a + k * g.a_stride;
#pragma GCC unroll 2
      for (std::int64_t line = 0; line < kRowsOfA; line += kLineElements)
        __builtin_prefetch(from + kDepthsAhead * g.a_stride + line);
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
TROUPE_INLINE void multiply_panel(SmallProduct p, BlockAhead& ahead) {
  if (p.n == 3 * Lanes) return multiply_columns<Lanes, Rows, 3>(p, 0, ahead);
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
      multiply_columns<Lanes, Rows, 3>(p, 0, ahead);
    else if (p.n > Lanes)
      multiply_columns<Lanes, Rows, 2>(p, 0, ahead);
    else
      multiply_columns<Lanes, Rows, 1>(p, 0, ahead);
    for (std::int64_t i = 0; i < p.m; ++i)
      std::memcpy(c + (row + i) * c_stride, beside + i * p.c_stride, bytes);
    p.a += Rows * p.a_row;
  }
}

// A part of B: columns [column, column + columns), rows [k0, k0 + depth).
struct PartOfB {
  std::int64_t column = 0, columns = 0, k0 = 0, depth = 0;
};

// The parts of a product in their order: all of the sum for some columns, then the next columns.
class Parts {
 public:
  explicit Parts(const Gemm& g)
      : g_(g), depth_step_(depth_of(g.k)), column_step_(packed_columns(g.k)) {}
  PartOfB first() const { return part(0, 0); }
  // No columns after the last.
  PartOfB after(const PartOfB& at) const {
    const std::int64_t k0 = at.k0 + at.depth;
    return k0 < g_.k ? part(at.column, k0) : part(at.column + at.columns, 0);
  }

 private:
  PartOfB part(std::int64_t column, std::int64_t k0) const {
    return {column, std::clamp<std::int64_t>(g_.n - column, 0, column_step_), k0,
            std::min(depth_step_, g_.k - k0)};
  }
  const Gemm& g_;
  std::int64_t depth_step_, column_step_;
};

BlockAhead lines_of(const Gemm& g, const PartOfB& part) {
  if (part.columns == 0) return {};
  const auto* b = static_cast<const float*>(g.b);
  if (g.transpose_b)
    return {b + part.column * g.b_stride + part.k0, part.columns, part.depth, g.b_stride};
  return {b + part.k0 * g.b_stride + part.column, part.depth, part.columns, g.b_stride};
}

// Rows [row, row + rows) of A, as far as there are so many.
BlockAhead lines_of_rows(const Gemm& g, const PartOfB& part, std::int64_t row, std::int64_t rows) {
  rows = std::min(rows, g.m - row);
  if (rows <= 0) return {};
  const auto* a = static_cast<const float*>(g.a);
  if (g.transpose_a) return {a + part.k0 * g.a_stride + row, part.depth, rows, g.a_stride};
  return {a + row * g.a_stride + part.k0, rows, part.depth, g.a_stride};
}

// Rows [row, row + rows) of C by all columns of a part: in blocks of Rows, panel by panel. While
// the last panel is multiplied, some of the next part of B is fetched; meanwhile, some of the next
// rows of A.
template <int Lanes, int Rows, bool kTransposedA>
TROUPE_INLINE void multiply_rows(const Gemm& g, const PartOfB& part, std::int64_t row,
                                 std::int64_t rows, const float* packed_a, const float* packed_b,
                                 BlockAhead& next_b) {
  constexpr std::int64_t kPanel = 3 * Lanes;
  SmallProduct p{.k = part.depth,
                 .a_row = kTransposedA ? 1 : g.a_stride,
                 .a_column = kTransposedA ? Rows : 1,
                 .b_stride = kPanel,
                 .c_stride = g.c_stride,
                 .accumulate = g.accumulate || part.k0 > 0};
  float* const rows_of_c = static_cast<float*>(g.c.data) + row * g.c_stride + part.column;
  BlockAhead next_a = kTransposedA ? lines_of_rows(g, part, row + rows, kRowsOfA) : BlockAhead();
  for (std::int64_t i = 0; i < rows; i += Rows) {
    p.m = std::min<std::int64_t>(Rows, rows - i);
    p.a = kTransposedA ? packed_a + i * part.depth
                       : static_cast<const float*>(g.a) + (row + i) * g.a_stride + part.k0;
    if (!kTransposedA) next_a = lines_of_rows(g, part, row + i + p.m, Rows);
    float* const c = rows_of_c + i * g.c_stride;
    for (std::int64_t j = 0; j < part.columns; j += kPanel) {
      p.n = std::min(kPanel, part.columns - j);
      p.b = packed_b + j * part.depth;
      p.c = c + j;
      const bool last = j + kPanel >= part.columns;
      BlockAhead& ahead = last ? next_b : next_a;
      const std::int64_t next_row = row + i + p.m;
      if (!last)
        ahead.next_block(p.c + kPanel, g.c_stride, p.m);
      else
        ahead.next_block(c + p.m * g.c_stride, g.c_stride,
                         std::clamp<std::int64_t>(g.m - next_row, 0, Rows));
      multiply_panel<Lanes, Rows>(p, ahead);
    }
  }
}

template <int Lanes, int Rows>
TROUPE_INLINE void multiply_with(const Gemm& g, float* scratch) {
  constexpr std::int64_t kPanel = 3 * Lanes;
  float* packed_b = scratch;
  float* packed_a = packed_b + kPackedFloatsOfB;
  const Parts parts(g);
  for (PartOfB part = parts.first(); part.columns > 0; part = parts.after(part)) {
    for (std::int64_t j = 0; j < part.columns; j += kPanel)
      pack_panel<Lanes>(g, part.k0, part.depth, part.column + j, std::min(kPanel, part.columns - j),
                        kPanel, packed_b + j * part.depth);
    BlockAhead next_b = lines_of(g, parts.after(part));
    for (std::int64_t row = 0; row < g.m; row += kRowsOfA) {
      const std::int64_t rows = std::min(kRowsOfA, g.m - row);
      if (g.transpose_a) {
        pack_rows<Rows>(g, row, rows, part.k0, part.depth, packed_a);
        multiply_rows<Lanes, Rows, true>(g, part, row, rows, packed_a, packed_b, next_b);
      } else {
        multiply_rows<Lanes, Rows, false>(g, part, row, rows, packed_a, packed_b, next_b);
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

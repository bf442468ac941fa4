#pragma once
// What a bf16 product is made of on processors with AVX512-BF16: operands in the order in which
// the dot product instruction takes them, and the product of some rows and some columns. Private to
// train/cpu.
//
// The instruction takes pairs of the depth. A panel holds kPanel… rows of A (or columns of B) pair
// by pair, and of each pair the two elements of all rows. Rows of A whose elements stand side by
// side are pairs already: they are read where they lie, or rounded in that order. What is missing
// at an edge is zero. fp32 elements are rounded to bf16 on their way (to nearest, ties to even; the
// instruction takes subnormal ones for zero), so that a product needs no converted copy of its
// operands.

#include <cstdint>

#include "train/cpu/division.h"
#include "train/cpu/lines_ahead.h"
#include "train/tensor/dtype.h"

namespace troupe::train::bf16 {

// Rows of a panel of A and columns of one of B: 24 of the 32 vector registers hold sums.
inline constexpr std::int64_t kPanelOfA = 8;
inline constexpr std::int64_t kPanelOfB = 48;

inline constexpr std::int64_t pairs_of(std::int64_t depth) { return ceil_div(depth, 2); }
// Elements of `edge` rows (columns) in panels of `panel` of them. Room is there for a multiple of
// 16 rows, which are packed at once.
inline constexpr std::int64_t packed_elements(std::int64_t edge, std::int64_t depth,
                                              std::int64_t panel) {
  return ceil_to(ceil_to(edge, 16), panel) * 2 * pairs_of(depth);
}

// A part of an operand in memory.
struct Source {
  const void* data = nullptr;
  DType type = DType::kF32;  // or kBF16
  std::int64_t stride = 0;
  // The elements of one row of A (column of B) stand side by side; else those of one depth do.
  bool deep = false;
};

// Packs columns of B [begin, begin + edge) and depths [k0, k0 + depth) into panels of kPanelOfB.
void pack_columns(const Source& source, std::int64_t begin, std::int64_t edge, std::int64_t k0,
                  std::int64_t depth, std::uint16_t* out);

// Rows of A as multiply takes them.
struct Rows {
  const std::uint16_t* data = nullptr;
  // From row to row, whose pairs stand side by side; 0: panels of kPanelOfA instead.
  std::int64_t stride = 0;
  // Those from `row` on, a multiple of kPanelOfA.
  Rows from(std::int64_t row, std::int64_t pairs) const {
    return {data + row * (stride ? stride : 2 * pairs), stride};
  }
};

// Rows of A [begin, begin + edge) and depths [k0, k0 + depth): in `out`, which has room for
// packed_elements(edge, depth, kPanelOfA), or where they lie.
Rows rows_of(const Source& source, std::int64_t begin, std::int64_t edge, std::int64_t k0,
             std::int64_t depth, std::uint16_t* out);

// The lines of rows of A (or columns of B) that will be wanted next.
LinesAhead lines_of(const Source& source, std::int64_t begin, std::int64_t edge, std::int64_t k0,
                    std::int64_t depth);

// A part of C: 1 … kPanelOfA rows, 1 … kPanelOfB columns. With `transposed` it lies with its
// columns as rows.
struct Target {
  float* c = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0, columns = 0;
  bool accumulate = false;
  bool transposed = false;
};

// Pairs that are multiplied between two fetches of what lies ahead.
inline constexpr std::int64_t kPairsPerFetch = 16;

// c = a·b, or c += a·b: as many rows of A as the target has times one panel of B. Meanwhile some
// lines of what lies ahead are fetched for every kPairsPerFetch pairs.
void multiply(const Rows& a, const std::uint16_t* b, std::int64_t pairs, const Target& target,
              LinesAhead& ahead, std::int64_t lines);

}  // namespace troupe::train::bf16

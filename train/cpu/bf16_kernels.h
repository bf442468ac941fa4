#pragma once
// What a bf16 product is made of on processors with AVX512-BF16: operands packed into panels, and
// the product of two panels. Private to train/cpu.
//
// A panel holds the elements of kPanel… rows of A (or columns of B) in the order in which the dot
// product instruction takes them: pair by pair of the depth, and of each pair the two elements of
// all rows. What is missing at an edge is zero. fp32 elements are rounded to bf16 on their way (to
// nearest, ties to even; the instruction takes subnormal ones for zero), so that a product needs no
// converted copy of its operands.

#include <cstdint>

#include "train/tensor/dtype.h"

namespace troupe::train::bf16 {

// Rows of a panel of A and columns of one of B: 24 of the 32 vector registers hold sums.
inline constexpr std::int64_t kPanelOfA = 8;
inline constexpr std::int64_t kPanelOfB = 48;

inline constexpr std::int64_t pairs_of(std::int64_t depth) { return (depth + 1) / 2; }
// Elements of `edge` rows (columns) in panels of `panel` of them. Room is there for a multiple of
// 16 rows, which are packed at once.
inline constexpr std::int64_t packed_elements(std::int64_t edge, std::int64_t depth,
                                              std::int64_t panel) {
  return ((edge + 15) / 16 * 16 + panel - 1) / panel * panel * 2 * pairs_of(depth);
}

// A part of an operand in memory.
struct Source {
  const void* data = nullptr;
  DType type = DType::kF32;  // or kBF16
  std::int64_t stride = 0;
  // The elements of one row of A (column of B) stand side by side; else those of one depth do.
  bool deep = false;
};

// Packs rows (columns) [begin, begin + edge) and depths [k0, k0 + depth) into panels of `panel`.
void pack(const Source& source, std::int64_t begin, std::int64_t edge, std::int64_t k0,
          std::int64_t depth, std::int64_t panel, std::uint16_t* out);

// c = a·b, or c += a·b: one panel of A times one of B. rows: 1 … kPanelOfA, columns: 1 …
// kPanelOfB of c that exist.
void multiply_panels(const std::uint16_t* a, const std::uint16_t* b, std::int64_t pairs, float* c,
                     std::int64_t c_stride, std::int64_t rows, std::int64_t columns,
                     bool accumulate);

}  // namespace troupe::train::bf16

#pragma once
// An operand of a product in bf16 or fp16 in the type that it is multiplied in: private to
// train/cpu.
//
// Scratch memory holds converted blocks: the parts of the operand that one tile's product reads.
// How a block lies depends on the tile's shape alone, so that what oneDNN does with it does not
// depend on how many blocks are converted at once.

#include <cstddef>
#include <cstdint>

#include "runtime/base/huge_pages.h"
#include "train/cpu/arena.h"
#include "train/cpu/division.h"
#include "train/tensor/dtype.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// An operand in memory, and its cut into blocks along the edge that it shares with C: A's rows, B's
// columns. The other edge is the depth of the sum.
struct OperandView {
  const void* data = nullptr;
  DType type = DType::kF32;
  std::int64_t stride = 0;
  bool edge_is_row = false;  // an index of the edge is a row in memory; else it is a column
  std::int64_t edge = 0;
  std::int64_t depth = 0;
  std::int64_t block_edge = 0;   // the last block may be smaller
  std::int64_t block_depth = 0;  // at most

  std::int64_t blocks() const { return ceil_div(edge, block_edge); }
};

// What a product reads: a block, converted or in place.
struct OperandPart {
  const void* data = nullptr;
  DType type = DType::kF32;
  std::int64_t stride = 0;
};

class StagedOperand {
 public:
  // `blocks_max`: as many are staged at once. Grows its scratch memory when it must.
  // staged_type: kBF16, or kF32 whose values are rounded to bf16, or to fp16.
  void begin(const OperandView& view, DType staged_type, Arithmetic arithmetic,
             std::int64_t elements_max);

  // How many blocks fit at once; all of them where nothing is converted.
  std::int64_t blocks_per_panel() const { return panel_; }
  // Converts the blocks [first, first + blocks_per_panel()) of the depth [k0, k0 + depth).
  void stage(Arena& arena, std::int64_t first, std::int64_t k0, std::int64_t depth);
  // Of a block in the staged panel.
  OperandPart part(std::int64_t block) const;

 private:
  std::int64_t block_stride(std::int64_t block) const;
  std::int64_t edge_of(std::int64_t block) const;
  // One row of a block, to where it lies in the scratch memory.
  void convert(std::int64_t block, std::int64_t row) const;

  OperandView view_;
  DType staged_type_ = DType::kF32;
  Arithmetic arithmetic_ = Arithmetic::kBf16;
  bool in_place_ = false;
  std::int64_t panel_ = 0;
  std::int64_t block_elements_ = 0;
  std::int64_t first_ = 0, k0_ = 0, depth_ = 0;  // of the staged panel

  HugeBytes scratch_;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace troupe::train

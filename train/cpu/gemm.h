#pragma once
// Matrix products in fp32, bf16 and fp16, cut into tiles and run on an arena.
//
// fp32 products are packed_product.h's, whose bits do not depend on how they are cut: they are cut
// so that threads find work. A product of oneDNN (bf16, fp16; few rows; a processor without AVX2)
// is cut by its shape alone. So bits depend on the shape and the processor's instruction set
// (isa.h), not on the number of threads. Operands that do not have the type of the arithmetic are
// converted, some tiles at a time, to scratch memory whose layout depends on the shape alone, too.

#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/base/huge_pages.h"
#include "train/cpu/arena.h"
#include "train/cpu/bf16_gemm.h"
#include "train/cpu/compiled_gemm.h"
#include "train/cpu/cpu_options.h"
#include "train/cpu/staged_operand.h"
#include "train/cpu/workspace.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// The cut of a product into tiles; the last of each dimension may be smaller.
struct GemmTiling {
  std::int64_t rows = 0;     // of C
  std::int64_t columns = 0;  // of C
  std::int64_t depth = 0;    // of the sum: pieces are added in order
};
GemmTiling gemm_tiling(std::int64_t m, std::int64_t n, std::int64_t k);

class GemmEngine {
 public:
  GemmEngine(int slots, const CpuOptions& options);

  // What converted operands take at most with `slots` threads. (Products of a few rows may take as
  // much again where others are packed; training has none but for a batch of a few targets.)
  static std::size_t staging_bytes_max(int slots, bool native_bf16);
  // Values of a quantised operand that are there at once, in bytes; more where 64 rows take more.
  static constexpr std::int64_t kDequantizedBytes = 4 << 20;

  // Whether bf16 products use the processor's own instructions; else operands are rounded to bf16
  // values in fp32.
  bool native_bf16() const { return staged_type_ == DType::kBF16; }

  // Whether bf16_kernels.h may be used.
  bool packs_bf16() const { return bf16_.has_value(); }

  // The product, tile by tile on the arena.
  void run(Arena& arena, const Gemm& gemm);

 private:
  void run_fp32(Arena& arena, const Gemm& gemm);
  void run_compiled(Arena& arena, const Gemm& gemm, const GemmTiling& tiling);
  // In bf16 or fp16: operands are converted to `staged`.
  void run_staged(Arena& arena, const Gemm& gemm, const GemmTiling& tiling, DType staged);
  // Some rows of B at a time, as they lie in memory: their values, then their product.
  void run_quantized(Arena& arena, const Gemm& gemm);

  CompiledGemms compiled_;
  SlotWorkspaces packed_;  // of fp32 products
  // Takes bf16 products, but those of few rows, where it is there.
  std::optional<Bf16Gemms> bf16_;
  DType staged_type_;  // of both operands of a bf16 product as oneDNN gets them
  StagedOperand staged_a_, staged_b_;
  HugeBytes dequantized_;  // values of rows of a quantised operand
  std::int64_t dequantized_bytes_ = 0;
};

}  // namespace troupe::train

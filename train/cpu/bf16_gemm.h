#pragma once
// bf16 products by AVX512-BF16, for operands of either type: private to train/cpu.
//
// oneDNN's bf16 products want operands that are bf16 already, and then copy them into an order of
// their own. Here both happen in one pass (bf16_kernels.h), so that fp32 activations and gradients
// cost a product hardly more than bf16 ones do; bf16 rows of A, such as the gradient of the logits,
// are not copied at all. A and B change places where that spares more.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/huge_pages.h"
#include "train/cpu/arena.h"
#include "train/tensor/operators.h"

namespace troupe::train {

class Bf16Gemms {
 public:
  // Whether the processor and the limit on its instructions (isa.h) are those that this is for:
  // AVX512-BF16 without AMX.
  static bool supported();
  // Packed operands at most, of all threads.
  static std::size_t packed_bytes_max(int slots);

  explicit Bf16Gemms(int slots) : rows_(static_cast<std::size_t>(slots)) {}

  // The product, whose arithmetic is kBf16, on the arena. How sums are cut depends on k alone.
  void run(Arena& arena, const Gemm& gemm);

 private:
  struct Cut;
  std::uint16_t* row_block(int slot, std::int64_t elements);

  // Packed columns of B, for all threads; packed rows of A, each thread's own.
  HugeBytes columns_;
  std::int64_t columns_elements_ = 0;
  struct Rows {
    HugeBytes data;
    std::int64_t elements = 0;
  };
  std::vector<Rows> rows_;
};

}  // namespace troupe::train

#pragma once
// Products of 8 bits: which ones, and what becomes of their operands before.
//
// The recipe is torchao's with one scale a tensor ("tensorwise", Float8LinearConfig): operands are
// scaled by their greatest magnitude at this moment, activations and weights are rounded to E4M3,
// gradients that are passed back to E5M2 (the formats' places are those of Micikevicius et al.,
// "FP8 Formats for Deep Learning", 2022). Unlike there, the forward product's sums, too, are made
// without the units' fast accumulation. Both operands lie in rows of what is summed over, as the
// units want it; what does not, is turned round while it is rounded.

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "train/cuda/device/device.h"
#include "train/cuda/device/table.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// The GPUs that have the formats: compute capability 8.9, Ada and Hopper. kUnsupported, with the
// way out.
Status check_fp8(const CudaDevice& device);

struct Fp8Product {
  TroupeCudaGemm gemm;      // of the rounded operands
  TroupeCudaQuantize a, b;  // what they are made by
  std::int64_t a_bytes = 0, b_bytes = 0;
};

// Of a product in bf16 whose operands may be narrow; nothing where it cannot be one of 8 bits, and
// `why_not` says why.
std::optional<Fp8Product> plan_fp8_product(const Gemm& gemm, std::string& why_not);

}  // namespace troupe::train

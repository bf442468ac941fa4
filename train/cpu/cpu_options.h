#pragma once
// What of the processor the CPU's operators use.

namespace troupe::train {

struct CpuOptions {
  // bf16 products by the processor's own instructions, where it has them (AVX512-BF16, AMX).
  // Without, operands are rounded to bf16 values and multiplied in fp32.
  bool native_bf16 = true;
};

}  // namespace troupe::train

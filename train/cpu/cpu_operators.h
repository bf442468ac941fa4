#pragma once
// The operator table on the CPU.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "train/cpu/cpu_options.h"
#include "train/tensor/operators.h"

namespace troupe::train {

class Arena;

// Runs on `arena`, which must outlive it and serve nothing else during a call. Scratch memory is
// kept and stops growing after the first step; it comes to a few MiB a thread.
std::unique_ptr<Operators> make_cpu_operators(Arena& arena, const CpuOptions& options = {});

// The scratch memory that bf16 products add to that of fp32 ones, at most: what a memory plan
// counts. `operators` made by make_cpu_operators for `threads`.
std::size_t cpu_bf16_scratch_bytes(const Operators& operators, int threads);
// The same of fp16 products.
std::size_t cpu_fp16_scratch_bytes(int threads);
// The same of products with quantised weights.
std::int64_t cpu_quantized_scratch_bytes();

}  // namespace troupe::train

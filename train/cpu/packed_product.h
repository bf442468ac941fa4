#pragma once
// Products of large fp32 matrices in one thread: private to train/cpu.
//
// B is copied to panels as wide as the registers hold, a part that stays in the L2 cache at a time;
// A is read where it lies, or copied where its rows lie across memory. What is copied or read next
// is fetched while panels are multiplied. At the shapes of small models this is a tenth faster than
// oneDNN, which copies both operands of each tile (Zen 5, one thread).

#include <cstddef>
#include <cstdint>

#include "train/tensor/operators.h"

namespace troupe::train::kernels {

// Whether the processor has what multiply_packed needs (AVX2 and FMA).
bool has_packed_products();

// Columns of C that multiply_packed works on at once: where a product is cut into tiles of as many,
// nothing is copied twice.
std::int64_t packed_columns(std::int64_t k);

// Floats of scratch memory, aligned to 64 bytes, that multiply_packed needs.
std::size_t packed_scratch_floats();

// The product, fp32, in the calling thread. Every element of C is one chain of fused multiply-adds
// in order of k, which begins with C's element or 0: its bits depend on nothing else, such as how a
// product is cut into tiles.
void multiply_packed(const Gemm& gemm, float* scratch);

}  // namespace troupe::train::kernels

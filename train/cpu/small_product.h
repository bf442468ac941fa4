#pragma once
// Products of matrices that stay in a core's cache: private to train/cpu.
//
// oneDNN copies operands before it multiplies them and takes microseconds to begin, which is what a
// whole block of attention takes. Here operands are read where they lie.

#include <cstdint>

namespace troupe::train::kernels {

// C = A·B, or C += A·B with `accumulate`. Rows of B and C are contiguous; elements of A lie
// anywhere at regular distances, so that a transposed A costs nothing.
struct SmallProduct {
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;   // (m, k)
  std::int64_t a_row = 0;     // from a row of A to the next
  std::int64_t a_column = 0;  // from a column of A to the next
  const float* b = nullptr;   // (k, n)
  std::int64_t b_stride = 0;
  float* c = nullptr;  // (m, n)
  std::int64_t c_stride = 0;
  bool accumulate = false;
};

// In the calling thread. Every element of C is one chain of fused multiply-adds in order of k
// (which begins with C's element, or 0): its bits depend on nothing else, such as m and n.
// Processors without FMA (isa.h) round products and sums apart.
void multiply(const SmallProduct& product);

}  // namespace troupe::train::kernels

#pragma once
// How kernels are started.

#include <cuda_runtime.h>

#include <cstdint>

#include "train/cuda/kernels/arithmetic.h"
#include "train/cuda/kernels/packs.h"
#include "train/cuda/library/objects.h"
#include "train/tensor/dropout.h"

namespace troupe::train::cuda {

// Of T, where it is not deduced.
template <class T>
struct Tag {
  using Type = T;
};

// part(Tag<float>) or part(Tag<Bf16>). Returns what it returns.
template <class F>
int with_type(const char* what, int type, F&& part) {
  if (type == TROUPE_CUDA_F32) return part(Tag<float>{});
  if (type == TROUPE_CUDA_BF16) return part(Tag<Bf16>{});
  return fail(TROUPE_CUDA_INVALID, std::string(what) + ": elements are F32 or BF16, not of type " +
                                       std::to_string(type));
}

template <int kThreads, class Op>
__global__ void __launch_bounds__(kThreads) elementwise_kernel(Op op, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) op(i);
}

// op(0 … count).
template <class Op>
void for_each(cudaStream_t stream, const Op& op, std::int64_t count) {
  constexpr int kThreads = 256;
  if (count <= 0) return;
  elementwise_kernel<kThreads, Op>
      <<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(op,
                                                                                          count);
}

// What kernels take for the table's dropout.
inline Dropout dropout_of(const TroupeCudaDropout& d) {
  Dropout dropout;
  dropout.threshold = d.threshold, dropout.scale = d.scale;
  dropout.seed = d.seed, dropout.epoch = d.epoch, dropout.site = d.site;
  dropout.samples = d.samples, dropout.tokens = d.tokens;
  return dropout;
}
inline int need_dropout(const char* what, const TroupeCudaDropout& d) {
  if (d.threshold > 0 && d.threshold < 65536 && d.samples && d.tokens) return TROUPE_CUDA_OK;
  return fail(TROUPE_CUDA_INVALID, std::string(what) + ": a dropout of " +
                                       std::to_string(d.threshold) +
                                       " of 65536 elements, or without its rows");
}

// Blocks that `count` things need, `each` to a block.
inline unsigned blocks(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

}  // namespace troupe::train::cuda

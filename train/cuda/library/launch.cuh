#pragma once
// How kernels are started. The sources that include this are compiled twice: by nvcc, and for the
// host by the tests (tests/train/cuda/fake), whose cuda_runtime.h plays a GPU's blocks and threads.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "train/cuda/kernels/arithmetic.h"
#include "train/cuda/kernels/packs.h"
#include "train/cuda/library/launches.h"
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

// Shared memory of the calling kernel's block: one T for all its threads, and no value yet. A
// kernel has one of each T.
#if defined(__CUDACC__)
template <class T>
__device__ __forceinline__ T& block_shared() {
  __shared__ T shared;
  return shared;
}
#else
using host_gpu::block_shared;
#endif

// `float name[]` in a kernel: what it was started with of shared memory, at 16 bytes. (As a
// function that returns a pointer it takes attention's kernels up to 32 registers more.)
#if defined(__CUDACC__)
#define TROUPE_LAUNCH_SHARED(name) extern __shared__ __align__(16) float name[]
#else
#define TROUPE_LAUNCH_SHARED(name) float* const name = host_gpu::launch_shared()
#endif

struct LaunchShape {
  dim3 grid;                     // blocks
  int threads = 0;               // of a block
  std::size_t shared_bytes = 0;  // TROUPE_LAUNCH_SHARED's
};

// Enqueues a kernel whose blocks work together, in phases: kernels/block.h. launched() tells
// whether that failed.
template <class... Parameters, class... Args>
void start_blocks(TroupeCudaStream* stream, void (*kernel)(Parameters...), const LaunchShape& shape,
                  const Args&... args) {
#if defined(__CUDACC__)
  kernel<<<shape.grid, static_cast<unsigned>(shape.threads), shape.shared_bytes,
           cuda_stream(stream)>>>(args...);
#else
  host_gpu::start_blocks(stream, kernel, shape.grid, shape.threads, shape.shared_bytes, args...);
#endif
}

// Enqueues a kernel whose threads have nothing to do with one another.
template <class... Parameters, class... Args>
void start_threads(TroupeCudaStream* stream, void (*kernel)(Parameters...),
                   const LaunchShape& shape, const Args&... args) {
#if defined(__CUDACC__)
  start_blocks(stream, kernel, shape, args...);
#else
  host_gpu::start_threads(stream, kernel, shape.grid, shape.threads, args...);
#endif
}

// Blocks that `count` things need, `each` to a block.
inline unsigned blocks(std::int64_t count, std::int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

template <int kThreads, class Op>
__global__ void __launch_bounds__(kThreads) elementwise_kernel(Op op, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) op(i);
}

// op(0 … count).
template <class Op>
void for_each(TroupeCudaStream* stream, const Op& op, std::int64_t count) {
  constexpr int kThreads = 256;
  if (count <= 0) return;
  start_threads(stream, elementwise_kernel<kThreads, Op>, {blocks(count, kThreads), kThreads}, op,
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

}  // namespace troupe::train::cuda

#pragma once
// How Troupe's own attention is started: its kernels with and without dropout are compiled apart,
// at the same time.

#include "train/cuda/kernels/attention.h"
#include "train/cuda/library/launch.cuh"

namespace troupe::train::cuda {
namespace {  // each source's own

template <class T, class Tile, class... Drop>
__global__ void __launch_bounds__(kAttentionThreads)
    forward_kernel(AttentionForward<T> a, Drop... dropout) {
  TROUPE_LAUNCH_SHARED(memory);
  attention_forward_block<T, Tile>(AttentionBlock{blockIdx.x, blockIdx.y, blockIdx.z}, memory, a,
                                   dropout...);
}
template <class T>
__global__ void __launch_bounds__(kAttentionThreads) deltas_kernel(AttentionBackward<T> a) {
  auto& shared = block_shared<DeltaShared>();
  attention_deltas_block<T>(AttentionBlock{blockIdx.x}, shared, a);
}
template <class T, class Tile, class... Drop>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    keys_kernel(AttentionBackward<T> a, Drop... dropout) {
  TROUPE_LAUNCH_SHARED(memory);
  attention_keys_block<T, Tile>(AttentionBlock{blockIdx.x, blockIdx.y, blockIdx.z}, memory, a,
                                dropout...);
}
template <class T, class Tile, class... Drop>
__global__ void __launch_bounds__(kAttentionThreads)
    queries_kernel(AttentionBackward<T> a, Drop... dropout) {
  TROUPE_LAUNCH_SHARED(memory);
  attention_queries_block<T, Tile>(AttentionBlock{blockIdx.x, blockIdx.y, blockIdx.z}, memory, a,
                                   dropout...);
}

// The tile for heads of a size: part(Tag<AttentionTile>).
template <class F>
int with_forward_tile(std::int64_t head_dim, F&& part) {
  if (head_dim <= 64) return part(Tag<AttentionTile<4, 4, 1>>{});
  if (head_dim <= 128) return part(Tag<AttentionTile<4, 4, 2>>{});
  return part(Tag<AttentionTile<4, 4, 4>>{});
}
// Four operands at a time: the tiles of large heads are small.
template <class F>
int with_backward_tile(std::int64_t head_dim, F&& part) {
  if (head_dim <= 64) return part(Tag<AttentionTile<4, 2, 1>>{});
  if (head_dim <= 128) return part(Tag<AttentionTile<4, 2, 2>>{});
  return part(Tag<AttentionTile<2, 2, 4>>{});
}

inline int check_attention_shape(const char* what, const TroupeCudaAttention& s) {
  for (const auto& [name, value] : {std::pair{"batch", s.batch},
                                    {"query_length", s.query_length},
                                    {"key_length", s.key_length},
                                    {"query_heads", s.query_heads},
                                    {"key_heads", s.key_heads},
                                    {"head_dim", s.head_dim}})
    TROUPE_CUDA_RETURN_IF_FAILED(need_positive(what, name, value));
  if (s.head_dim > kHeadDimMax)
    return fail(TROUPE_CUDA_UNSUPPORTED, std::string(what) + ": heads of " +
                                             std::to_string(s.head_dim) + " elements, at most " +
                                             std::to_string(kHeadDimMax) + " are served");
  if (s.query_length > s.key_length)
    return fail(TROUPE_CUDA_INVALID, std::string(what) + ": more queries than keys");
  if (s.query_heads % s.key_heads != 0)
    return fail(TROUPE_CUDA_INVALID, std::string(what) + ": " + std::to_string(s.key_heads) +
                                         " key heads do not divide " +
                                         std::to_string(s.query_heads) + " query heads");
  if (s.query_heads > 65535 || s.batch > 65535)
    return fail(TROUPE_CUDA_UNSUPPORTED,
                std::string(what) + ": more than 65535 heads or batch rows in one call");
  return TROUPE_CUDA_OK;
}

// Starts a kernel with that much shared memory.
template <class... Args>
int start_attention(TroupeCudaStream* stream, const char* what, void (*kernel)(Args...), dim3 grid,
                    std::int64_t floats, const Args&... args) {
  const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
  const int most = shared_bytes_per_block(stream);
  if (bytes > static_cast<std::size_t>(most))
    return fail(TROUPE_CUDA_UNSUPPORTED, std::string(what) + ": needs " + std::to_string(bytes) +
                                             " bytes of shared memory, this GPU has " +
                                             std::to_string(most) + " for a block");
  TROUPE_CUDA_RETURN_IF_FAILED(check(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      std::string(what) + ": cudaFuncSetAttribute of " + std::to_string(bytes) + " bytes"));
  start_blocks(stream, kernel, {grid, kAttentionThreads, bytes}, args...);
  return launched(what, grid.x, grid.y);
}

template <class... Drop>
int start_attention_forward(TroupeCudaStream* stream, const char* what,
                            const TroupeCudaAttention* shape, const void* q, const void* k,
                            const void* v, void* out, float* log_sum_exp, const Drop&... dropout) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter(what, stream));
  const TroupeCudaAttention& s = *shape;
  TROUPE_CUDA_RETURN_IF_FAILED(check_attention_shape(what, s));
  return with_type(what, s.type, [&]<class T>(Tag<T>) {
    return with_forward_tile(s.head_dim, [&]<class Tile>(Tag<Tile>) {
      const AttentionForward<T> a{static_cast<const T*>(q),
                                  static_cast<const T*>(k),
                                  static_cast<const T*>(v),
                                  static_cast<T*>(out),
                                  log_sum_exp,
                                  s.first_key,
                                  s.batch,
                                  s.query_length,
                                  s.key_length,
                                  s.query_heads,
                                  s.key_heads,
                                  s.head_dim,
                                  s.query_stride,
                                  s.key_stride,
                                  s.key_batch_stride,
                                  s.scale};
      const dim3 grid(blocks(s.query_length, Tile::kTileRows), static_cast<unsigned>(s.query_heads),
                      static_cast<unsigned>(s.batch));
      return start_attention(stream, what, forward_kernel<T, Tile, Drop...>, grid,
                             ForwardShared<Tile>::floats(s.head_dim, sizeof...(Drop) > 0), a,
                             dropout...);
    });
  });
}

template <class... Drop>
int start_attention_backward(TroupeCudaStream* stream, const char* what,
                             const TroupeCudaAttention* shape, const void* q, const void* k,
                             const void* v, const void* out, const float* log_sum_exp,
                             const void* dout, void* dq, void* dk, void* dv, void* scratch,
                             const Drop&... dropout) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter(what, stream));
  const TroupeCudaAttention& s = *shape;
  TROUPE_CUDA_RETURN_IF_FAILED(check_attention_shape(what, s));
  if (s.query_length != s.key_length)
    return fail(TROUPE_CUDA_INVALID, std::string(what) + ": as many queries as keys are needed");
  return with_type(what, s.type, [&]<class T>(Tag<T>) {
    return with_backward_tile(s.head_dim, [&]<class Tile>(Tag<Tile>) {
      const AttentionBackward<T> a{static_cast<const T*>(q),
                                   static_cast<const T*>(k),
                                   static_cast<const T*>(v),
                                   static_cast<const T*>(out),
                                   static_cast<const T*>(dout),
                                   log_sum_exp,
                                   static_cast<float*>(scratch),
                                   static_cast<T*>(dq),
                                   static_cast<T*>(dk),
                                   static_cast<T*>(dv),
                                   s.first_key,
                                   s.batch,
                                   s.query_length,
                                   s.query_heads,
                                   s.key_heads,
                                   s.head_dim,
                                   s.query_stride,
                                   s.key_stride,
                                   s.key_batch_stride,
                                   s.scale};
      start_blocks(
          stream, deltas_kernel<T>,
          {blocks(s.batch * s.query_length * s.query_heads, kDeltasPerBlock), kAttentionThreads},
          a);
      TROUPE_CUDA_RETURN_IF_FAILED(launched(what, s.query_length, s.query_heads));
      const unsigned tiles = blocks(s.query_length, Tile::kTileRows);
      const auto batch = static_cast<unsigned>(s.batch);
      const std::int64_t floats = BackwardShared<Tile>::floats(s.head_dim, sizeof...(Drop) > 0);
      TROUPE_CUDA_RETURN_IF_FAILED(start_attention(
          stream, what, keys_kernel<T, Tile, Drop...>,
          dim3(tiles, static_cast<unsigned>(s.key_heads), batch), floats, a, dropout...));
      return start_attention(stream, what, queries_kernel<T, Tile, Drop...>,
                             dim3(tiles, static_cast<unsigned>(s.query_heads), batch), floats, a,
                             dropout...);
    });
  });
}

}  // namespace
}  // namespace troupe::train::cuda

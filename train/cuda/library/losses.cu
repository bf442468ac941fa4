// Cross entropy, and gradients of embeddings.

#include "train/cuda/kernels/cross_entropy.h"
#include "train/cuda/kernels/embedding_backward.h"
#include "train/cuda/kernels/scratch_sizes.h"
#include "train/cuda/library/launch.cuh"

namespace troupe::train::cuda {
namespace {

template <class Gradient, int N>
__global__ void __launch_bounds__(kEntropyThreads) cross_entropy_kernel(CrossEntropy<Gradient> a) {
  auto& shared = block_shared<EntropyShared>();
  cross_entropy_row<Gradient, N>(EntropyBlock{blockIdx.x}, shared, a);
}

int cross_entropy(TroupeCudaStream* stream, float* logits, const std::int32_t* labels,
                  float* losses, float scale, void* gradient, std::int32_t gradient_type,
                  std::int64_t rows, std::int64_t classes) {
  constexpr const char* kWhat = "cross_entropy";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "rows", rows));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "classes", classes));
  const bool wanted = gradient_type >= 0;
  if (wanted && !gradient) {
    if (gradient_type != TROUPE_CUDA_F32)
      return fail(TROUPE_CUDA_INVALID,
                  "cross_entropy: only a gradient of F32 goes over the logits");
    gradient = logits;
  }
  return with_type(kWhat, wanted ? gradient_type : TROUPE_CUDA_F32, [&]<class T>(Tag<T>) {
    const CrossEntropy<T> a{
        logits, labels, losses, scale, wanted ? static_cast<T*>(gradient) : nullptr, rows, classes};
    const auto grid = static_cast<unsigned>(rows);
    if (packs_fit(classes, logits, a.gradient))
      start_blocks(stream, cross_entropy_kernel<T, kPack>, {grid, kEntropyThreads}, a);
    else
      start_blocks(stream, cross_entropy_kernel<T, 1>, {grid, kEntropyThreads}, a);
    return launched(kWhat, rows, classes);
  });
}

__global__ void __launch_bounds__(kSortThreads)
    sort_tile_kernel(const std::int32_t* ids, std::int64_t rows, std::uint64_t* keys) {
  auto& shared = block_shared<SortShared>();
  sort_tile(SortBlock{blockIdx.x}, shared, ids, rows, keys);
}
__global__ void __launch_bounds__(kSortThreads)
    sort_between_tiles_kernel(std::int64_t run, std::int64_t distance, std::uint64_t* keys) {
  // As many pairs as half of the keys, which are whole tiles.
  sort_between_tiles(std::int64_t{blockIdx.x} * kSortThreads + threadIdx.x, run, distance, keys);
}
__global__ void __launch_bounds__(kSortThreads)
    sort_within_tile_kernel(std::int64_t run, std::uint64_t* keys) {
  auto& shared = block_shared<SortShared>();
  sort_within_tile(SortBlock{blockIdx.x}, shared, run, keys);
}
template <class T, int N>
__global__ void __launch_bounds__(kScatterThreads) scatter_rows_kernel(ScatterRows<T> a) {
  scatter_rows<T, N>(a, blockIdx.x, (std::int64_t{blockIdx.y} * kScatterThreads + threadIdx.x) * N);
}

int embedding_backward(TroupeCudaStream* stream, std::int32_t type, const std::int32_t* ids,
                       const void* dout, float* dweight, std::int64_t rows, std::int64_t width,
                       void* scratch) {
  constexpr const char* kWhat = "embedding_backward";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "rows", rows));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "width", width));
  if (rows > INT32_MAX)
    return fail(TROUPE_CUDA_INVALID, "embedding_backward: more rows than 32 bits count");
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    auto* keys = static_cast<std::uint64_t*>(scratch);
    const std::int64_t count = sorted_keys(rows);
    const unsigned tiles = blocks(count, kSortTile);
    for_sort_launches(
        rows,
        [&](std::int64_t) {
          start_blocks(stream, sort_tile_kernel, {tiles, kSortThreads}, ids, rows, keys);
        },
        [&](std::int64_t run, std::int64_t distance) {
          start_threads(stream, sort_between_tiles_kernel,
                        {blocks(count / 2, kSortThreads), kSortThreads}, run, distance, keys);
        },
        [&](std::int64_t run) {
          start_blocks(stream, sort_within_tile_kernel, {tiles, kSortThreads}, run, keys);
        });
    TROUPE_CUDA_RETURN_IF_FAILED(launched(kWhat, rows, width));
    const ScatterRows<T> a{keys, static_cast<const T*>(dout), dweight, rows, width};
    const bool fits = packs_fit(width, dout, dweight);
    const dim3 grid(static_cast<unsigned>(rows),
                    blocks(width, kScatterThreads * (fits ? kPack : 1)));
    if (fits)
      start_threads(stream, scatter_rows_kernel<T, kPack>, {grid, kScatterThreads}, a);
    else
      start_threads(stream, scatter_rows_kernel<T, 1>, {grid, kScatterThreads}, a);
    return launched(kWhat, rows, width);
  });
}

}  // namespace

void fill_losses(TroupeCudaTable& table) {
  table.cross_entropy = cross_entropy;
  table.embedding_backward = embedding_backward;
  table.embedding_scratch_bytes = embedding_scratch_size;
}

}  // namespace troupe::train::cuda

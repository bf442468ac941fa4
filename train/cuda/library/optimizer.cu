// What the optimizer and the sharding engine do over flat ranges.

#include "train/cuda/kernels/elementwise.h"
#include "train/cuda/kernels/tile_sums.h"
#include "train/cuda/library/launch.cuh"

namespace troupe::train::cuda {
namespace {

int adamw(TroupeCudaStream* stream, const TroupeCudaAdamW* step, void* parameters,
          const float* gradients, void* first_moments, void* second_moments, std::int64_t count,
          const float* gradient_scale) {
  constexpr const char* kWhat = "adamw";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  if (count == 0) return TROUPE_CUDA_OK;
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "count", count));
  if (step->round_randomly && step->state_type != TROUPE_CUDA_BF16)
    return fail(TROUPE_CUDA_INVALID, "adamw: only states of BF16 are rounded randomly");
  return with_type(kWhat, step->state_type, [&]<class T>(Tag<T>) {
    const auto make = [&]<int N>(Tag<std::integral_constant<int, N>>, std::int64_t at) {
      return AdamW<T, N>{static_cast<T*>(parameters) + at,
                         gradients + at,
                         static_cast<T*>(first_moments) + at,
                         static_cast<T*>(second_moments) + at,
                         gradient_scale,
                         {step->beta1_rest, step->beta2, step->beta2_rest, step->step_size,
                          step->root_correction, step->epsilon, step->keep},
                         step->round_randomly != 0,
                         step->seed,
                         step->first_element + at};
    };
    const bool fits = packs_fit(0, parameters, gradients, first_moments, second_moments);
    const std::int64_t packs = fits ? count / kPack : 0;
    for_each(stream->stream, make(Tag<std::integral_constant<int, kPack>>{}, 0), packs);
    for_each(stream->stream, make(Tag<std::integral_constant<int, 1>>{}, packs * kPack),
             count - packs * kPack);
    return launched(kWhat, 1, count);
  });
}

template <int N>
__global__ void __launch_bounds__(kTileThreads) tile_sums_kernel(TileSums a) {
  __shared__ TileShared shared;
  tile_sum_block<N>(TileBlock{blockIdx.x}, shared, a);
}

int tile_sums_of_squares(TroupeCudaStream* stream, const float* x, std::int64_t count,
                         std::int64_t tile_elements, double* sums) {
  constexpr const char* kWhat = "tile_sums_of_squares";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  if (count == 0) return TROUPE_CUDA_OK;
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "count", count));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "tile_elements", tile_elements));
  const TileSums a{x, count, tile_elements, sums};
  const unsigned grid = blocks(count, tile_elements);
  if (packs_fit(tile_elements, x))
    tile_sums_kernel<kPack><<<grid, kTileThreads, 0, stream->stream>>>(a);
  else
    tile_sums_kernel<1><<<grid, kTileThreads, 0, stream->stream>>>(a);
  return launched(kWhat, grid, tile_elements);
}

template <class T, class Out, int kMax, int N>
TreeSum<T, Out, kMax, N> tree_of(const void* const* parts, std::int32_t count, void* out,
                                 std::int64_t at) {
  TreeSum<T, Out, kMax, N> sum{};
  for (int i = 0; i < count; ++i) sum.parts[i] = static_cast<const T*>(parts[i]) + at;
  sum.count = count;
  sum.out = static_cast<Out*>(out) + at;
  return sum;
}

int tree_sum(TroupeCudaStream* stream, const void* const* parts, std::int32_t count,
             std::int32_t type, void* out, std::int32_t out_type, std::int64_t elements) {
  constexpr const char* kWhat = "tree_sum";
  constexpr int kFew = 8;  // that are summed a pack at a time: more do not fit the registers
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "count", count));
  if (count > TROUPE_CUDA_PARTS_MAX)
    return fail(TROUPE_CUDA_INVALID, "tree_sum: " + std::to_string(count) + " parts, at most " +
                                         std::to_string(TROUPE_CUDA_PARTS_MAX) + " are summed");
  if (elements == 0) return TROUPE_CUDA_OK;
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "elements", elements));
  bool fits = count <= kFew && packs_fit(0, out);
  for (int i = 0; i < count; ++i) fits = fits && packs_fit(0, parts[i]);
  return with_type(kWhat, type, [&]<class T>(Tag<T>) {
    return with_type(kWhat, out_type, [&]<class Out>(Tag<Out>) {
      const std::int64_t packs = fits ? elements / kPack : 0;
      const std::int64_t done = packs * kPack;
      if (packs > 0)
        for_each(stream->stream, tree_of<T, Out, kFew, kPack>(parts, count, out, 0), packs);
      if (done < elements)
        for_each(stream->stream, tree_of<T, Out, TROUPE_CUDA_PARTS_MAX, 1>(parts, count, out, done),
                 elements - done);
      return launched(kWhat, count, elements);
    });
  });
}

}  // namespace

void fill_optimizer(TroupeCudaTable& table) {
  table.adamw = adamw;
  table.tile_sums_of_squares = tile_sums_of_squares;
  table.tree_sum = tree_sum;
}

}  // namespace troupe::train::cuda

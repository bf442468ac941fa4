// What the optimizer and the sharding engine do over flat ranges.

#include <algorithm>

#include "train/cuda/kernels/elementwise.h"
#include "train/cuda/kernels/tile_sums.h"
#include "train/cuda/kernels/transacted_adamw.h"
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
    for_each(stream, make(Tag<std::integral_constant<int, kPack>>{}, 0), packs);
    for_each(stream, make(Tag<std::integral_constant<int, 1>>{}, packs * kPack),
             count - packs * kPack);
    return launched(kWhat, 1, count);
  });
}

// Blocks of a multiprocessor that update at a time: as many as their registers allow without
// spilling. A turn of a block waits for loads and two fences, about 2 µs in all, in which an H200's
// memory moves 72 KB for each multiprocessor (4.8 TB/s, 132 of them): fp32 states give it 28 KB a
// block and turn, bf16 ones 16 KB.
template <class State>
constexpr int kUpdateBlocks = sizeof(State) == sizeof(float) ? 4 : 5;

template <class State>
__global__ void __launch_bounds__(kUpdateThreads, kUpdateBlocks<State>)
    transacted_adamw_kernel(const __grid_constant__ TransactedAdamW<State> a) {
  const Block<kUpdateThreads> block{blockIdx.x};
  DeviceWords words;
  UpdateWriter<State, kUpdateThreads, DeviceWords> writer(a, blockIdx.x, gridDim.x);
  writer.open(block, words);
  while (writer.working()) {
    writer.change(block, words);
    writer.announce(block, words);
  }
}

template <class State>
__global__ void __launch_bounds__(kUpdateThreads)
    restore_kernel(const __grid_constant__ TransactedAdamW<State> a) {
  DeviceWords words;
  restore_chunk(Block<kUpdateThreads>{blockIdx.x}, a, words);
}

static_assert(sizeof(ChunkRange) == sizeof(TroupeCudaUpdateRange));
static_assert(sizeof(DecayEnd) == sizeof(TroupeCudaDecayEnd));
static_assert(sizeof(UndoHeader) == TROUPE_CUDA_UNDO_HEADER_BYTES);
static_assert(kUpdateThreads * kPack == TROUPE_CUDA_CHUNK_ELEMENTS);
static_assert(TROUPE_CUDA_UNDO_SLOTS_PER_WRITER == 2);

template <class State>
TransactedAdamW<State> transacted_of(const TroupeCudaUpdate& u) {
  auto* headers = static_cast<UndoHeader*>(u.undo);
  const TroupeCudaAdamW& step = u.adamw;
  return {static_cast<State*>(u.parameters),
          u.gradients,
          static_cast<State*>(u.first_moments),
          static_cast<State*>(u.second_moments),
          reinterpret_cast<const ChunkRange*>(u.ranges),
          u.range_count,
          reinterpret_cast<const DecayEnd*>(u.decays),
          u.chunks,
          u.step,
          u.marks,
          headers,
          reinterpret_cast<PackWords*>(headers + u.writers * TROUPE_CUDA_UNDO_SLOTS_PER_WRITER),
          u.gradient_scale,
          {step.beta1_rest, step.beta2, step.beta2_rest, step.step_size, step.root_correction,
           step.epsilon, step.keep},
          step.round_randomly != 0,
          step.seed};
}

int adamw_transacted(TroupeCudaStream* stream, const TroupeCudaUpdate* update) {
  constexpr const char* kWhat = "adamw_transacted";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  const TroupeCudaUpdate& u = *update;
  if (u.chunks == 0) return TROUPE_CUDA_OK;
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "chunks", u.chunks));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "writers", u.writers));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "range_count", u.range_count));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "decay_count", u.decay_count));
  if (u.step == 0) return fail(TROUPE_CUDA_INVALID, "adamw_transacted: steps count from 1");
  if (u.adamw.round_randomly && u.adamw.state_type != TROUPE_CUDA_BF16)
    return fail(TROUPE_CUDA_INVALID, "adamw_transacted: only states of BF16 are rounded randomly");
  if (!packs_fit(0, u.parameters, u.gradients, u.first_moments, u.second_moments, u.undo))
    return fail(TROUPE_CUDA_INVALID, "adamw_transacted: buffers begin at multiples of 16 bytes");
  return with_type(kWhat, u.adamw.state_type, [&]<class State>(Tag<State>) {
    const TransactedAdamW<State> a = transacted_of<State>(u);
    const auto slots = static_cast<unsigned>(u.writers * TROUPE_CUDA_UNDO_SLOTS_PER_WRITER);
    start_blocks(stream, restore_kernel<State>, {slots, kUpdateThreads}, a);
    TROUPE_CUDA_RETURN_IF_FAILED(launched(kWhat, slots, TROUPE_CUDA_CHUNK_ELEMENTS));
    const std::int64_t most = std::int64_t{multiprocessors(stream)} * kUpdateBlocks<State>;
    const auto grid = static_cast<unsigned>(std::min({u.writers, u.chunks, most}));
    start_blocks(stream, transacted_adamw_kernel<State>, {grid, kUpdateThreads}, a);
    return launched(kWhat, u.chunks, TROUPE_CUDA_CHUNK_ELEMENTS);
  });
}

template <int N>
__global__ void __launch_bounds__(kTileThreads) tile_sums_kernel(TileSums a) {
  auto& shared = block_shared<TileShared>();
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
    start_blocks(stream, tile_sums_kernel<kPack>, {grid, kTileThreads}, a);
  else
    start_blocks(stream, tile_sums_kernel<1>, {grid, kTileThreads}, a);
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
      if (packs > 0) for_each(stream, tree_of<T, Out, kFew, kPack>(parts, count, out, 0), packs);
      if (done < elements)
        for_each(stream, tree_of<T, Out, TROUPE_CUDA_PARTS_MAX, 1>(parts, count, out, done),
                 elements - done);
      return launched(kWhat, count, elements);
    });
  });
}

}  // namespace

void fill_optimizer(TroupeCudaTable& table) {
  table.adamw = adamw;
  table.adamw_transacted = adamw_transacted;
  table.tile_sums_of_squares = tile_sums_of_squares;
  table.tree_sum = tree_sum;
}

}  // namespace troupe::train::cuda

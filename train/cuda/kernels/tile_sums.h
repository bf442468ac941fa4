#pragma once
// Σ x² of each tile of a flat range, in double, by one block.

#include <cstdint>

#include "train/cuda/kernels/arithmetic.h"
#include "train/cuda/kernels/block.h"
#include "train/cuda/kernels/packs.h"

namespace troupe::train::cuda {

inline constexpr int kTileThreads = 256;
using TileBlock = Block<kTileThreads>;

struct TileShared {
  double sums[sum_groups_room(kTileThreads, kTileThreads)];
};

struct TileSums {
  const float* x;
  std::int64_t count, tile_elements;
  double* sums;
};

// N = kPack: tiles begin at 16 bytes; whole packs of the last tile are read as packs, the rest one
// by one by the first threads.
template <int N>
TROUPE_HOST_DEVICE void tile_sum_block(const TileBlock& block, TileShared& shared,
                                       const TileSums& a) {
  const std::int64_t begin = block.x * a.tile_elements;
  const std::int64_t left = a.count - begin;
  const std::int64_t size = left < a.tile_elements ? left : a.tile_elements;
  PerThread<double, kTileThreads> total;
  block.phase([&](int t) {
    double sum = 0.0;
    const std::int64_t packed = size / N * N;
    for (std::int64_t i = std::int64_t{t} * N; i < packed; i += kTileThreads * N) {
      float v[N];
      load_pack<N>(a.x + begin + i, v);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) sum += static_cast<double>(v[k]) * static_cast<double>(v[k]);
    }
    if (packed + t < size) {
      const auto last = static_cast<double>(a.x[begin + packed + t]);
      sum += last * last;
    }
    total[t] = sum;
  });
  sum_groups<kTileThreads>(block, shared.sums, total);
  block.phase([&](int t) {
    if (t == 0) a.sums[block.x] = total[t];
  });
}

}  // namespace troupe::train::cuda

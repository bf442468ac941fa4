#pragma once
// Rows added to the rows of a table that they came from, without atomics: (id, position) pairs are
// sorted, then a block walks each id's positions in order.
//
// The sort is bitonic: pairs are distinct, so any sort is stable, and its comparisons are a
// function of the count alone. The pairs of a tile are sorted in shared memory; only comparisons
// between tiles go through the device's.

#include <cstdint>

#include "train/cuda/kernels/arithmetic.h"
#include "train/cuda/kernels/block.h"
#include "train/cuda/kernels/packs.h"

namespace troupe::train::cuda {

inline constexpr int kSortThreads = 256;
inline constexpr int kSortTile = 2048;
using SortBlock = Block<kSortThreads>;

// Keys that are sorted for `rows` rows: a power of two, whole tiles. Those behind the rows are the
// greatest.
TROUPE_HOST_DEVICE std::int64_t sorted_keys(std::int64_t rows) {
  std::int64_t count = kSortTile;
  while (count < rows) count *= 2;
  return count;
}
TROUPE_HOST_DEVICE std::uint64_t sort_key(std::int32_t id, std::int64_t position) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(id)) << 32 |
         static_cast<std::uint32_t>(position);
}

struct SortShared {
  std::uint64_t keys[kSortTile];
};

// Of a step (run, distance): key `at` and the one `distance` behind it are in order afterwards,
// ascending where bit `run` of their place is 0.
TROUPE_HOST_DEVICE void order_pair(std::uint64_t* keys, std::int64_t at, std::int64_t distance,
                                   bool ascending) {
  const std::uint64_t a = keys[at], b = keys[at + distance];
  if ((a > b) == ascending) keys[at] = b, keys[at + distance] = a;
}
// The pair'th of those places whose bit `distance` is 0.
TROUPE_HOST_DEVICE std::int64_t pair_place(std::int64_t pair, std::int64_t distance) {
  return pair / distance * 2 * distance + pair % distance;
}
TROUPE_HOST_DEVICE int pair_place(int pair, int distance) {
  return pair / distance * 2 * distance + pair % distance;
}

TROUPE_HOST_DEVICE void sort_steps(const SortBlock& block, SortShared& shared, std::int64_t run,
                                   int distance_from) {
  for (int distance = distance_from; distance > 0; distance /= 2) {
    block.phase([&](int t) {
      for (int pair = t; pair < kSortTile / 2; pair += kSortThreads) {
        const int at = pair_place(pair, distance);
        order_pair(shared.keys, at, distance, ((block.x * kSortTile + at) & run) == 0);
      }
    });
  }
}

// Makes the keys of tile block.x and sorts them.
TROUPE_HOST_DEVICE void sort_tile(const SortBlock& block, SortShared& shared,
                                  const std::int32_t* ids, std::int64_t rows, std::uint64_t* keys) {
  const std::int64_t begin = block.x * kSortTile;
  block.phase([&](int t) {
    for (int i = t; i < kSortTile; i += kSortThreads)
      shared.keys[i] = begin + i < rows ? sort_key(ids[begin + i], begin + i) : ~std::uint64_t{0};
  });
  for (int run = 2; run <= kSortTile; run *= 2) sort_steps(block, shared, run, run / 2);
  block.phase([&](int t) {
    for (int i = t; i < kSortTile; i += kSortThreads) keys[begin + i] = shared.keys[i];
  });
}

// One step between tiles: pair `pair` of all.
TROUPE_HOST_DEVICE void sort_between_tiles(std::int64_t pair, std::int64_t run,
                                           std::int64_t distance, std::uint64_t* keys) {
  const std::int64_t at = pair_place(pair, distance);
  order_pair(keys, at, distance, (at & run) == 0);
}

// The steps of `run` that stay within tile block.x.
TROUPE_HOST_DEVICE void sort_within_tile(const SortBlock& block, SortShared& shared,
                                         std::int64_t run, std::uint64_t* keys) {
  const std::int64_t begin = block.x * kSortTile;
  block.phase([&](int t) {
    for (int i = t; i < kSortTile; i += kSortThreads) shared.keys[i] = keys[begin + i];
  });
  sort_steps(block, shared, run, kSortTile / 2);
  block.phase([&](int t) {
    for (int i = t; i < kSortTile; i += kSortThreads) keys[begin + i] = shared.keys[i];
  });
}

// All launches of a sort, in order: first(tiles), between(run, distance), within(run).
template <class First, class Between, class Within>
void for_sort_launches(std::int64_t rows, First&& first, Between&& between, Within&& within) {
  const std::int64_t count = sorted_keys(rows);
  first(count / kSortTile);
  for (std::int64_t run = 2 * kSortTile; run <= count; run *= 2) {
    for (std::int64_t distance = run / 2; distance >= kSortTile; distance /= 2)
      between(run, distance);
    within(run);
  }
}

inline constexpr int kScatterThreads = 128;

template <class T>
struct ScatterRows {
  const std::uint64_t* keys;  // sorted
  const T* dout;
  float* dweight;
  std::int64_t rows, width;
};

// Where the sorted place `place` begins an id, adds that id's rows in order of their positions, at
// the thread's columns: those from `column` on.
template <class T, int N>
TROUPE_HOST_DEVICE void scatter_rows(const ScatterRows<T>& a, std::int64_t place,
                                     std::int64_t column) {
  constexpr int kAhead = 4;  // rows that are fetched before the first of them is added
  const std::uint64_t first = a.keys[place];
  if (place > 0 && a.keys[place - 1] >> 32 == first >> 32) return;
  if (column >= a.width) return;
  float* target = a.dweight + static_cast<std::int64_t>(first >> 32) * a.width + column;
  float sums[N];
  load_pack<N>(target, sums);
  bool more = true;
  for (std::int64_t at = place; more; at += kAhead) {
    float rows[kAhead][N];
    bool same[kAhead];
    TROUPE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const std::uint64_t key = at + i < a.rows ? a.keys[at + i] : ~first;
      same[i] = key >> 32 == first >> 32;
      if (same[i])
        load_pack<N>(a.dout + static_cast<std::int64_t>(key & 0xffffffffu) * a.width + column,
                     rows[i]);
    }
    TROUPE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (!same[i]) continue;
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) sums[k] += rows[i][k];
    }
    more = same[kAhead - 1];
  }
  store_pack<N>(sums, target);
}

}  // namespace troupe::train::cuda

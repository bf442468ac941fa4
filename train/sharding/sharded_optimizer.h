#pragma once
// The global norm and AdamW over what a rank owns.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "train/optimizer/adamw.h"
#include "train/optimizer/gradient_norm.h"
#include "train/sharding/mesh_communicators.h"
#include "train/sharding/rank_layout.h"
#include "train/tensor/dtype.h"

namespace troupe::train {

// Runs fn(i, slot) for every i in [0, count), on as many threads as there are; back when all are
// done. No two calls at a time have the same slot.
using ParallelFor =
    std::function<void(std::int64_t count, const std::function<void(std::int64_t, int slot)>& fn)>;

// What is updated at once: a page of each of its parts, so that what a log saves of it is still in
// the nearest cache when it is updated.
inline constexpr std::int64_t kUpdateElements = 1024;
inline constexpr std::int64_t kChunksPerTile = kTileElements / kUpdateElements;
static_assert(kTileElements % kUpdateElements == 0);

// What the update of a chunk changes: its parameters and moments.
using ChunkParts = std::array<std::span<std::byte>, 3>;
// Decides whether a chunk is updated, and does it under whatever log it keeps. From several threads
// at a time, each with a slot of its own.
using ChunkUpdate = std::function<void(int slot, std::int64_t chunk, const ChunkParts& parts,
                                       const std::function<void()>& update)>;

// The regions' buffers of this rank. parameters, exp_avg and exp_avg_sq are of `state`.
struct StateBuffers {
  DType state = DType::kF32;  // or kBF16
  std::span<std::byte> parameters;
  std::span<float> gradients;
  std::span<std::byte> exp_avg;
  std::span<std::byte> exp_avg_sq;
  // Where they lie, for ranks of the same machine to read in place; null: not in shared memory. The
  // same on all ranks.
  const memory::Segment* segment = nullptr;
};

class ShardedOptimizer {
 public:
  ShardedOptimizer(const RankLayout& layout, const MeshCommunicators& communicators,
                   ParallelFor parallel_for, StateBuffers buffers);

  // The norm of the whole gradient: sums over this rank's tiles, gathered over the shard group,
  // added in the order of the tiles. The same bits on every rank. Collective.
  Result<GradientNorm> norm();
  // One AdamW update of what this rank owns, chunk by chunk. No communication.
  void update(const AdamWStep& step, const ChunkUpdate& guard);
  void update(const AdamWStep& step);
  // Chunks are this rank's tiles, cut: those of a tile follow one another. Their number, and bytes
  // that the update of one changes, follow from the layout alone.
  static std::int64_t chunk_count(const RankLayout& layout);
  static std::size_t chunk_bytes(DType state);
  ChunkParts chunk_parts(std::int64_t chunk) const;

 private:
  // A tile of this rank: where it lies.
  struct Tile {
    std::int64_t flat = 0;                                      // in the concatenation of all units
    std::int64_t parameters = 0, gradients = 0, optimizer = 0;  // offsets in the regions
  };

  template <typename T>
  void update_chunk(const AdamWFactors& step, std::int64_t chunk);

  const RankLayout& layout_;
  const MeshCommunicators& communicators_;
  const ParallelFor parallel_for_;
  StateBuffers buffers_;
  std::vector<Tile> tiles_;  // that this rank updates
  // Of the shard group, member by member: how many tiles, and where each comes in flat order.
  std::vector<std::size_t> tile_counts_;
  std::vector<std::int64_t> flat_tile_;
};

}  // namespace troupe::train

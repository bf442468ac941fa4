#pragma once
// A rank's update in memory of the host, tile by tile under the log: what the CPU does for itself,
// and for a GPU whose optimizer is offloaded.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "train/sharding/optimizer_device.h"
#include "train/sharding/tile_sums.h"

namespace troupe::train {

// Adds what the update of a chunk changes, as update number `updates` of the optimizer left it
// (CommitRecord::moment_updates).
void add_chunk(const StateBuffers& buffers, const UpdateRange& chunk, std::int64_t updates,
               TileSum& sum);
// Adds what is kept by tensor of the tensors that begin in the tile, as update number `updates`
// wrote it. Of the two slots the other one, which the next update writes, has no part in it.
void add_tensors(const StateBuffers& buffers, const UpdateRange& tile, std::int64_t updates,
                 TileSum& sum);

class HostUpdate {
 public:
  // As make_cpu_optimizer_device(); the shard's gradients may lie elsewhere.
  HostUpdate(OptimizerShard shard, UpdateLog* log, UpdateObserver observer);

  const OptimizerShard& shard() const { return shard_; }
  // Of the shard, each of kTileElements, in the order of its ranges.
  std::int64_t tiles() const { return std::ssize(tiles_); }
  const UpdateRange& tile(std::int64_t tile) const {
    return tiles_[static_cast<std::size_t>(tile)];
  }

  // First of all that follows here.
  std::unique_ptr<const PreparedUpdate> prepare(const OptimizerStep& step) {
    updates_ = step.updates;
    return shard_.optimizer->prepare(step, shard_.groups->groups());
  }
  // Of so many tiles that lie together.
  std::span<const float> gradients(std::int64_t first_tile, std::int64_t tiles) const {
    return shard_.buffers.gradients.subspan(static_cast<std::size_t>(tile(first_tile).gradients),
                                            static_cast<std::size_t>(tiles * kTileElements));
  }
  // Calls update(tile, slot, directions) for every tile of the update of that number, from all
  // threads. `directions`: as UpdateChunk has them. `slot` as in ParallelFor.
  using TileUpdate =
      std::function<void(std::int64_t tile, int slot, std::span<const float> directions)>;
  void for_each_tile(const PreparedUpdate& prepared, std::int64_t number,
                     const ParallelFor& parallel_for, const TileUpdate& update) const;
  // Before an update of `number` ≥ 1: what a killed process left half written of it is restored.
  void restore(std::int64_t number);
  // Nothing of the tile has been updated by that number yet, or all of it has, once restore() is
  // done.
  bool is_untouched(std::int64_t number, std::int64_t tile) const;
  bool is_done(std::int64_t number, std::int64_t tile) const;
  // What of a tile the update of that number has not done. `slot`: no two calls at a time have the
  // same. `gradients`: the tile's. `before`, `after`: sums of what it held and holds, chunk by
  // chunk (add_chunk()), without what is kept by tensor; null: not wanted.
  void update_tile(const PreparedUpdate& prepared, std::int64_t number, int slot, std::int64_t tile,
                   std::span<const float> gradients, std::span<const float> directions = {},
                   TileSum* before = nullptr, TileSum* after = nullptr);
  void forget();

 private:
  // Of all of the block's elements.
  std::vector<float> directions(const PreparedUpdate& prepared, const UpdateBlock& block) const;
  void update_chunk(const PreparedUpdate& prepared, std::int64_t number, int slot,
                    std::int64_t chunk, std::span<const float> gradients,
                    std::span<const float> directions);
  UpdateRange place_of(std::int64_t chunk) const;

  const OptimizerShard shard_;
  UpdateLog* const log_;
  const UpdateObserver observer_;
  const std::vector<UpdateRange> tiles_;
  std::int64_t updates_ = 0;  // of the update that was prepared last
};

}  // namespace troupe::train

#pragma once
// The global norm and the update of what a rank owns.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "train/optimizer/gradient_norm.h"
#include "train/optimizer/optimizer.h"
#include "train/sharding/mesh_communicators.h"
#include "train/sharding/optimizer_device.h"
#include "train/sharding/rank_layout.h"
#include "train/tensor/dtype.h"

namespace troupe::train {

// One thread uses it. All that it is made with outlives it.
class ShardedOptimizer {
 public:
  // communicators: of the host's memory. device: made for this layout's shard.
  ShardedOptimizer(const RankLayout& layout, const MeshCommunicators& communicators,
                   OptimizerDevice& device);

  // The norm of the whole gradient, or of the part of it that takes part in update number
  // `updates`: sums over this rank's tiles, gathered over the shard group, added in the order of
  // the tiles. The same bits on every rank. Collective.
  Result<GradientNorm> norm(std::int64_t updates = 1);
  // One update of what this rank owns, or what is left of it: see OptimizerDevice::update. No
  // communication.
  Status update(const OptimizerStep& step, std::int64_t number) {
    return device_.update(step, number);
  }
  // Before steps are done that may have been done before.
  Status forget_updates() { return device_.forget_updates(); }

  // Chunks are this rank's tiles, cut: those of a tile follow one another. Their number, and bytes
  // that the update of one changes, follow from the layout and the optimizer's slots alone.
  static std::int64_t chunk_count(const RankLayout& layout);
  static std::size_t chunk_bytes(DType state, std::size_t slots);

 private:
  const RankLayout& layout_;
  const MeshCommunicators& communicators_;
  OptimizerDevice& device_;
  // Of the shard group, member by member: how many tiles, and where each comes in flat order.
  std::vector<std::size_t> tile_counts_;
  std::vector<std::int64_t> flat_tile_;
};

}  // namespace troupe::train

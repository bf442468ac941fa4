#include "train/sharding/sharded_optimizer.h"

#include <span>

#include "train/sharding/index.h"

namespace troupe::train {

ShardedOptimizer::ShardedOptimizer(const RankLayout& layout, const MeshCommunicators& communicators,
                                   OptimizerDevice& device)
    : layout_(layout), communicators_(communicators), device_(device) {
  const ShardMap& shards = layout.shards();
  for (int member = 0; member < shards.members(); ++member) {
    tile_counts_.push_back(index(shards.shard_elements(member) / kTileElements));
    for (int unit = 0; unit < layout.units(); ++unit) {
      const ElementRange range = shards.flat_range(unit, member);
      for (std::int64_t at = range.begin; at < range.end; at += kTileElements)
        flat_tile_.push_back(at / kTileElements);
    }
  }
}

Result<GradientNorm> ShardedOptimizer::norm(std::int64_t updates) {
  const std::vector<double> own = TROUPE_TRY(device_.tile_sums());
  std::vector<double> gathered = own;
  if (communicators_.host_shard() && layout_.sharded(Region::kOptimizer)) {
    gathered.resize(flat_tile_.size());
    TROUPE_RETURN_IF_ERROR(communicators_.host_shard()->all_gather(
        std::span<const double>(own), std::span<double>(gathered), tile_counts_));
  }
  std::vector<double> by_tile(gathered.size());
  for (std::size_t i = 0; i < gathered.size(); ++i) by_tile[index(flat_tile_[i])] = gathered[i];
  if (const Optimizer* optimizer = device_.optimizer(); optimizer && optimizer->rule()) {
    // Whole layers take part or do not: no tile has tensors of both kinds.
    const ParameterGroups& groups = layout_.layout().groups();
    for (const ParameterGroups::Range& range : groups.ranges()) {
      if (optimizer->is_active(groups.of(range).treatment, updates)) continue;
      for (std::int64_t at = range.begin; at < range.end; at += kTileElements)
        by_tile[index(at / kTileElements)] = 0.0;
    }
  }
  return combine_tile_sums(by_tile);
}

std::int64_t ShardedOptimizer::chunk_count(const RankLayout& layout) {
  std::int64_t elements = 0;
  for (int unit = 0; unit < layout.units(); ++unit) elements += layout.updated(unit).size();
  return elements / kUpdateElements;
}

std::size_t ShardedOptimizer::chunk_bytes(DType state, std::size_t slots) {
  return (1 + slots) * index(kUpdateElements) * dtype_size(state);
}

}  // namespace troupe::train

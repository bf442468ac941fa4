#include "train/sharding/rank_layout.h"

#include <utility>

#include "runtime/base/check.h"

namespace troupe::train {

RankLayout::RankLayout(const ParameterLayout& layout, Strategy strategy, const Mesh& mesh, int rank)
    : layout_(&layout),
      strategy_(strategy),
      mesh_(mesh),
      rank_(rank),
      shards_(layout, mesh.dp_shard) {
  TROUPE_CHECK(rank >= 0 && rank < mesh.size(), "rank {} of {}", rank, mesh.size());
}

RankLayout::RankLayout(const ModelLayout& layout, Strategy strategy, const Mesh& mesh, int rank)
    : RankLayout(layout.trained(), strategy, mesh, rank) {
  if (!layout.trains(0)) first_backward_unit_ = static_cast<int>(layout.first_trained_layer()) + 1;
  if (!layout.has_frozen()) return;
  auto frozen = std::make_shared<RankLayout>(layout.frozen(), strategy, mesh, rank);
  frozen->first_backward_unit_ = first_backward_unit_;
  frozen_ = std::move(frozen);
}

bool RankLayout::sharded(Region region) const {
  switch (region) {
    case Region::kParameters:
      return row().shards_parameters;
    case Region::kGradients:
      return row().shards_gradients;
    case Region::kOptimizer:
      return row().shards_optimizer;
  }
  return false;
}

std::int64_t RankLayout::elements(Region region) const {
  return sharded(region) ? shards_.shard_elements(shard()) : layout_->total_elements();
}

std::int64_t RankLayout::offset(Region region, int unit, std::int64_t element) const {
  if (!sharded(region)) {
    return layout_->units()[static_cast<std::size_t>(unit)].flat_offset + element;
  }
  const ElementRange own = owned(unit);
  TROUPE_CHECK(element >= own.begin && element <= own.end, "element {} of unit {}", element, unit);
  return shards_.shard_offset(unit, shard()) + element - own.begin;
}

ElementRange RankLayout::reduced_range(int unit, int shard, int replica) const {
  const ElementRange own = shards_.range(unit, shard);
  const std::int64_t tiles = own.size() / kTileElements, replicas = mesh_.dp_replicate;
  // As in ShardMap: what does not divide goes to other replicas from unit to unit.
  const std::int64_t more = tiles % replicas;
  std::int64_t begin = own.begin;
  for (int r = 0;; ++r) {
    const std::int64_t elements =
        (tiles / replicas + ((r + unit) % replicas < more ? 1 : 0)) * kTileElements;
    if (r == replica) return {begin, begin + elements};
    begin += elements;
  }
}

std::vector<std::size_t> RankLayout::reduced_counts(int unit) const {
  std::vector<std::size_t> counts;
  for (int replica = 0; replica < mesh_.dp_replicate; ++replica)
    counts.push_back(static_cast<std::size_t>(reduced_range(unit, shard(), replica).size()));
  return counts;
}

std::vector<std::size_t> RankLayout::reduced_counts_by_data_rank(int unit) const {
  std::vector<std::size_t> counts;
  for (int shard = 0; shard < mesh_.dp_shard; ++shard)
    for (int replica = 0; replica < mesh_.dp_replicate; ++replica)
      counts.push_back(static_cast<std::size_t>(reduced_range(unit, shard, replica).size()));
  return counts;
}

}  // namespace troupe::train

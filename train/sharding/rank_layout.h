#pragma once
// What one rank holds of a model under a strategy: the strategy's row, applied to a layout and a
// place in the mesh.

#include <cstdint>
#include <memory>
#include <vector>

#include "train/model/model_layout.h"
#include "train/sharding/shard_map.h"
#include "train/sharding/strategy.h"

namespace troupe::train {

// The persistent buffers.
enum class Region { kParameters, kGradients, kOptimizer };

// Immutable; outlived by the layout.
class RankLayout {
 public:
  RankLayout(const ParameterLayout& layout, Strategy strategy, const Mesh& mesh, int rank);
  // Of what is trained of a model, with frozen() beside it.
  RankLayout(const ModelLayout& layout, Strategy strategy, const Mesh& mesh, int rank);

  // Of the model's frozen parameters, which are sharded and gathered as the trained ones: of it
  // Region::kParameters alone exists. Null where everything is trained.
  const RankLayout* frozen() const { return frozen_.get(); }
  // The first unit that a backward pass uses.
  int first_backward_unit() const { return first_backward_unit_; }

  const ParameterLayout& layout() const { return *layout_; }
  const StrategyRow& row() const { return row_of(strategy_); }
  const Mesh& mesh() const { return mesh_; }
  int rank() const { return rank_; }
  int shard() const { return mesh_.shard_of(rank_); }
  int replica() const { return mesh_.replica_of(rank_); }
  int units() const { return static_cast<int>(layout_->units().size()); }
  std::int64_t unit_elements(int unit) const {
    return layout_->units()[static_cast<std::size_t>(unit)].elements;
  }

  // Whether a region holds this rank's shard only; else it is whole.
  bool sharded(Region region) const;
  // Elements of a region's buffer.
  std::int64_t elements(Region region) const;
  // Where element `element` of `unit` lies in a region. Sharded: it must be the shard's.
  std::int64_t offset(Region region, int unit, std::int64_t element) const;

  // What the rank's shard group member owns of a unit: parameters and gradients where they are
  // sharded. The whole unit where the group has one member (DDP).
  ElementRange owned(int unit) const { return shards_.range(unit, shard()); }
  std::span<const std::size_t> owned_counts(int unit) const { return shards_.counts(unit); }
  const ShardMap& shards() const { return shards_; }
  // The part of owned(unit) whose gradient this rank sums: the replicas of a shard share the work.
  ElementRange reduced(int unit) const { return reduced_range(unit, shard(), replica()); }
  ElementRange reduced_range(int unit, int shard, int replica) const;
  // Elements of the parts of this rank's replicas, in their order: they make up owned(unit).
  std::vector<std::size_t> reduced_counts(int unit) const;
  // The same of all ranks, by data rank (Mesh::data_rank_of): they make up the unit.
  std::vector<std::size_t> reduced_counts_by_data_rank(int unit) const;

  // What the rank's optimizer updates: its shard, or everything where moments are whole.
  ElementRange updated(int unit) const {
    return sharded(Region::kOptimizer) ? owned(unit) : ElementRange{0, unit_elements(unit)};
  }

 private:
  const ParameterLayout* layout_;
  Strategy strategy_;
  Mesh mesh_;
  int rank_;
  ShardMap shards_;
  int first_backward_unit_ = 1;
  std::shared_ptr<const RankLayout> frozen_;
};

}  // namespace troupe::train

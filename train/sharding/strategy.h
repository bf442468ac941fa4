#pragma once
// What is sharded: a strategy is a row of a table, not a trainer of its own.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"

namespace troupe::train {

// Rows by what they keep, named after their best-known user. NO_SHARD and ZeRO-0 are kDdp; FSDP2
// and FULL_SHARD are kZero3, with reshard_after_forward=false kShardGradOp.
enum class Strategy {
  kDdp,
  kZero1,
  kZero2,
  kShardGradOp,
  kZero3,
  kHybridShard,       // HSDP: kZero3 within a shard group, replicated over groups
  kHybridShardZero2,  // kShardGradOp within a shard group, replicated over groups
};

// Which buffers a rank holds whole between steps, and which by its shard. Sources: the ZeRO paper
// (arXiv 1910.02054), DeepSpeed's stages, torch.distributed.fsdp.ShardingStrategy.
struct StrategyRow {
  Strategy strategy;
  std::string_view name;   // as troupe.strategy says it
  bool shards_parameters;  // fp32 parameters; gathered unit by unit for use
  bool shards_gradients;   // reduced gradients
  bool shards_optimizer;   // the optimizer's slots, and the work of its update
  // Gathered parameters are dropped after a unit's forward pass and gathered again for its
  // backward pass. Only where parameters are sharded.
  bool reshards_after_forward;
  bool hybrid;  // sharded within groups, replicated over them
};

// All rows, in the order of the enumeration.
std::span<const StrategyRow> strategy_table();
const StrategyRow& row_of(Strategy strategy);
// Whether parameters can be offloaded: where an update does not gather them (every rank's copy is
// its own, or sharded).
bool offloads_parameters(Strategy strategy);
// By the table's names and their synonyms: no_shard, zero0 (ddp); fsdp, full_shard (zero3);
// hybrid_shard (hsdp); hybrid_shard_zero2 (hsdp_zero2). Nothing for others.
std::optional<Strategy> strategy_from_name(std::string_view name);

// How the ranks of a world are laid out over named axes. rank = replicate · dp_shard + shard:
// the members of a shard group are neighbours, most likely on one node. Tensor, context and
// pipeline parallelism have their axes here and are 1 until they exist.
struct Mesh {
  int dp_replicate = 1;
  int dp_shard = 1;
  int tp = 1;
  int cp = 1;
  int pp = 1;

  int size() const { return dp_replicate * dp_shard * tp * cp * pp; }
  int shard_of(int rank) const { return rank % dp_shard; }
  int replica_of(int rank) const { return rank / dp_shard; }
  int rank_at(int replica, int shard) const { return replica * dp_shard + shard; }
  // Which state each rank holds, by rank: those with equal numbers hold the same bytes, after every
  // step, so that one of them is enough to go on from.
  std::vector<int> replicas() const;
  // Which of a round's micro-batches the rank computes. The low bits count replicas, so that
  // summing within shard groups first and over replicas then is the fixed binary tree over
  // micro-batches: the same bits as every other strategy where dp_replicate is a power of two.
  int data_rank_of(int rank) const { return shard_of(rank) * dp_replicate + replica_of(rank); }

  friend bool operator==(const Mesh&, const Mesh&) = default;
};

// The mesh of a strategy. `replicate` and `shard` are troupe.mesh, 0 where it is not given: then
// a hybrid strategy has shard groups of `ranks_per_node` (where that divides the world), and the
// others one axis. kInvalidArgument where the product is not the world size, or a mesh is given
// that the strategy does not have.
Result<Mesh> make_mesh(Strategy strategy, int world_size, int ranks_per_node, int replicate,
                       int shard);

// "zero3" or "hsdp 2×4", for people.
std::string describe(Strategy strategy, const Mesh& mesh);

}  // namespace troupe::train

#include "train/sharding/strategy.h"

#include <array>
#include <cstdint>

#include <fmt/format.h>

namespace troupe::train {
namespace {

constexpr std::array<StrategyRow, 7> kRows = {{
    // strategy, name, parameters, gradients, optimizer, reshards, hybrid
    {Strategy::kDdp, "ddp", false, false, false, false, false},
    {Strategy::kZero1, "zero1", false, false, true, false, false},
    {Strategy::kZero2, "zero2", false, true, true, false, false},
    {Strategy::kShardGradOp, "shard_grad_op", true, true, true, false, false},
    {Strategy::kZero3, "zero3", true, true, true, true, false},
    {Strategy::kHybridShard, "hsdp", true, true, true, true, true},
    {Strategy::kHybridShardZero2, "hsdp_zero2", true, true, true, false, true},
}};

struct Synonym {
  std::string_view name;
  Strategy strategy;
};
constexpr Synonym kSynonyms[] = {
    {"no_shard", Strategy::kDdp},
    {"zero0", Strategy::kDdp},
    {"fsdp", Strategy::kZero3},
    {"full_shard", Strategy::kZero3},
    {"hybrid_shard", Strategy::kHybridShard},
    {"hybrid_shard_zero2", Strategy::kHybridShardZero2},
};

}  // namespace

std::span<const StrategyRow> strategy_table() { return kRows; }

const StrategyRow& row_of(Strategy strategy) { return kRows[static_cast<std::size_t>(strategy)]; }

bool offloads_parameters(Strategy strategy) {
  const StrategyRow& row = row_of(strategy);
  return row.shards_parameters || !row.shards_optimizer;
}

std::optional<Strategy> strategy_from_name(std::string_view name) {
  for (const StrategyRow& row : kRows)
    if (row.name == name) return row.strategy;
  for (const Synonym& synonym : kSynonyms)
    if (synonym.name == name) return synonym.strategy;
  return std::nullopt;
}

std::vector<int> Mesh::replicas() const {
  std::vector<int> states;
  for (int rank = 0; rank < size(); ++rank) states.push_back(shard_of(rank));
  return states;
}

Result<Mesh> make_mesh(Strategy strategy, int world_size, int ranks_per_node, int replicate,
                       int shard) {
  const StrategyRow& row = row_of(strategy);
  if (world_size < 1) return error(Code::kInvalidArgument, "{} trainers", world_size);
  const bool given = replicate != 0 || shard != 0;
  if (given && (replicate < 1 || shard < 1)) {
    return error(Code::kInvalidArgument, "troupe.mesh={},{}: both sides must be at least 1",
                 replicate, shard);
  }
  const std::int64_t places = std::int64_t{replicate} * shard;
  if (given && places != world_size) {
    return error(Code::kInvalidArgument,
                 "troupe.mesh={},{} has {} places, the run has {} trainers: their product must be "
                 "the number of trainers",
                 replicate, shard, places, world_size);
  }
  if (row.hybrid) {
    if (!given) {
      shard = ranks_per_node > 0 && world_size % ranks_per_node == 0 ? ranks_per_node : world_size;
      replicate = world_size / shard;
    }
    return Mesh{.dp_replicate = replicate, .dp_shard = shard};
  }
  const Mesh mesh =
      row.shards_optimizer ? Mesh{.dp_shard = world_size} : Mesh{.dp_replicate = world_size};
  if (given && (mesh.dp_replicate != replicate || mesh.dp_shard != shard)) {
    return error(Code::kInvalidArgument,
                 "troupe.mesh={},{} does not go with troupe.strategy={}, whose mesh is {},{}; for "
                 "shard groups that are replicated use troupe.strategy=hsdp",
                 replicate, shard, row.name, mesh.dp_replicate, mesh.dp_shard);
  }
  return mesh;
}

std::string describe(Strategy strategy, const Mesh& mesh) {
  const StrategyRow& row = row_of(strategy);
  if (!row.hybrid) return std::string(row.name);
  return fmt::format("{} {}×{}", row.name, mesh.dp_replicate, mesh.dp_shard);
}

}  // namespace troupe::train

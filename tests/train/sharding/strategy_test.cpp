#include "train/sharding/strategy.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "runtime/collective/reduce_tree.h"

namespace troupe::train {
namespace {

// The sum of a group's values by the communicator's tree, in the group's order.
float tree_sum(const std::vector<float>& values) {
  std::vector<const std::byte*> inputs;
  for (const float& value : values) inputs.push_back(reinterpret_cast<const std::byte*>(&value));
  float sum = 0;
  collective::tree_reduce(inputs, reinterpret_cast<std::byte*>(&sum), 1,
                          collective::DataType::kFloat32, collective::ReduceOp::kSum);
  return sum;
}

// values[data rank], summed in each shard group, then over the replicas.
float hierarchical_sum(const Mesh& mesh, const std::vector<float>& values) {
  std::vector<float> groups;
  for (int replica = 0; replica < mesh.dp_replicate; ++replica) {
    std::vector<float> members;
    for (int shard = 0; shard < mesh.dp_shard; ++shard) {
      const int data_rank = mesh.data_rank_of(mesh.rank_at(replica, shard));
      members.push_back(values[static_cast<std::size_t>(data_rank)]);
    }
    groups.push_back(tree_sum(members));
  }
  return tree_sum(groups);
}

// Numbers whose sum depends on the order, so that another tree has other bits.
std::vector<float> uneven_values(int count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values;
  for (int i = 0; i < count; ++i) {
    const float magnitude = std::ldexp(1.0f, static_cast<int>(random() % 24));
    values.push_back((static_cast<float>(random()) / 4294967296.0f - 0.5f) * magnitude);
  }
  return values;
}

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

TEST_CASE("the table is in the order of the enumeration, with unique names") {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < strategy_table().size(); ++i) {
    const StrategyRow& row = strategy_table()[i];
    CAPTURE(row.name);
    CHECK(static_cast<std::size_t>(row.strategy) == i);
    CHECK(&row_of(row.strategy) == &row);
    CHECK(strategy_from_name(row.name) == row.strategy);
    CHECK(names.insert(row.name).second);
    // What is sharded by one stage is sharded by the next.
    CHECK((!row.shards_parameters || row.shards_gradients));
    CHECK((!row.shards_gradients || row.shards_optimizer));
    CHECK((!row.reshards_after_forward || row.shards_parameters));
    CHECK((!row.hybrid || row.shards_parameters));
  }
}

TEST_CASE("synonyms") {
  CHECK(strategy_from_name("no_shard") == Strategy::kDdp);
  CHECK(strategy_from_name("zero0") == Strategy::kDdp);
  CHECK(strategy_from_name("fsdp") == Strategy::kZero3);
  CHECK(strategy_from_name("full_shard") == Strategy::kZero3);
  CHECK(strategy_from_name("hybrid_shard") == Strategy::kHybridShard);
  CHECK(strategy_from_name("hybrid_shard_zero2") == Strategy::kHybridShardZero2);
  CHECK(!strategy_from_name("zero4"));
  CHECK(!strategy_from_name(""));
  CHECK(!strategy_from_name("DDP"));
}

TEST_CASE("meshes that follow from the strategy") {
  for (const int world : {1, 2, 3, 4, 8}) {
    CAPTURE(world);
    CHECK(make_mesh(Strategy::kDdp, world, world, 0, 0).value() == Mesh{.dp_replicate = world});
    for (const Strategy strategy :
         {Strategy::kZero1, Strategy::kZero2, Strategy::kShardGradOp, Strategy::kZero3}) {
      CHECK(make_mesh(strategy, world, world, 0, 0).value() == Mesh{.dp_shard = world});
    }
  }
  const auto hybrid = [](int world, int per_node) {
    return make_mesh(Strategy::kHybridShard, world, per_node, 0, 0).value();
  };
  CHECK(hybrid(8, 4) == Mesh{.dp_replicate = 2, .dp_shard = 4});
  CHECK(hybrid(4, 4) == Mesh{.dp_replicate = 1, .dp_shard = 4});
  // Nodes of unequal numbers of ranks: one group.
  CHECK(hybrid(6, 4) == Mesh{.dp_replicate = 1, .dp_shard = 6});
  CHECK(hybrid(3, 0) == Mesh{.dp_replicate = 1, .dp_shard = 3});
  CHECK(describe(Strategy::kHybridShard, hybrid(8, 4)) == "hsdp 2×4");
  CHECK(describe(Strategy::kZero3, Mesh{.dp_shard = 4}) == "zero3");
}

TEST_CASE("a mesh that is given") {
  const Mesh given = make_mesh(Strategy::kHybridShardZero2, 6, 6, 2, 3).value();
  CHECK(given == Mesh{.dp_replicate = 2, .dp_shard = 3});
  CHECK(given.size() == 6);
  // Saying what the strategy has anyway is no error.
  CHECK(make_mesh(Strategy::kZero3, 4, 4, 1, 4).value() == Mesh{.dp_shard = 4});
  CHECK(make_mesh(Strategy::kDdp, 4, 4, 4, 1).value() == Mesh{.dp_replicate = 4});
}

TEST_CASE("meshes that do not go are refused") {
  const auto refused = [](Strategy strategy, int world, int replicate, int shard) {
    const auto mesh = make_mesh(strategy, world, world, replicate, shard);
    REQUIRE(!mesh.ok());
    CHECK(mesh.status().code() == Code::kInvalidArgument);
    return mesh.status().message();
  };
  CHECK(refused(Strategy::kHybridShard, 4, 2, 3).find("has 6 places, the run has 4 trainers") !=
        std::string::npos);
  CHECK(refused(Strategy::kZero3, 4, 2, 2).find("troupe.strategy=hsdp") != std::string::npos);
  CHECK(refused(Strategy::kDdp, 4, 1, 4).find("whose mesh is 4,1") != std::string::npos);
  // Halves, negative numbers and products beyond an int.
  refused(Strategy::kHybridShard, 4, 0, 4);
  refused(Strategy::kHybridShard, 4, 4, 0);
  refused(Strategy::kHybridShard, 4, -2, -2);
  constexpr int kLarge = std::numeric_limits<int>::max();
  refused(Strategy::kHybridShard, 1, kLarge, kLarge);
  refused(Strategy::kZero3, 0, 0, 0);
}

TEST_CASE("ranks, shards, replicas and data ranks are one to one") {
  for (const auto& [replicate, shard] :
       std::vector<std::pair<int, int>>{{1, 1}, {4, 1}, {1, 4}, {2, 4}, {4, 2}, {3, 2}, {2, 3}}) {
    const Mesh mesh{.dp_replicate = replicate, .dp_shard = shard};
    CAPTURE(replicate);
    CAPTURE(shard);
    std::set<int> data_ranks;
    for (int rank = 0; rank < mesh.size(); ++rank) {
      CHECK(mesh.rank_at(mesh.replica_of(rank), mesh.shard_of(rank)) == rank);
      CHECK(mesh.replica_of(rank) < replicate);
      CHECK(mesh.shard_of(rank) < shard);
      const int data_rank = mesh.data_rank_of(rank);
      CHECK(data_rank >= 0);
      CHECK(data_rank < mesh.size());
      CHECK(data_ranks.insert(data_rank).second);
      if (replicate == 1 || shard == 1) CHECK(data_rank == rank);
    }
  }
}

// HSDP has the bits of the other strategies: the sum within shard groups and then over replicas is
// the tree over data ranks. It takes a power of two of replicas; the groups may have any size.
TEST_CASE("summing by shard group, then over replicas, is the tree over data ranks") {
  for (const auto& [replicate, shard] : std::vector<std::pair<int, int>>{
           {1, 4}, {2, 2}, {2, 4}, {4, 2}, {4, 4}, {8, 2}, {2, 8}, {1, 3}, {2, 3}, {4, 5}}) {
    const Mesh mesh{.dp_replicate = replicate, .dp_shard = shard};
    CAPTURE(replicate);
    CAPTURE(shard);
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
      const auto values = uneven_values(mesh.size(), seed);
      CHECK(same_bits(hierarchical_sum(mesh, values), tree_sum(values)));
    }
  }
}

// The test above can fail: with the data ranks in the ranks' order the bits differ.
TEST_CASE("the ranks' own order is not the tree") {
  const Mesh mesh{.dp_replicate = 2, .dp_shard = 4};
  int differing = 0;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const auto values = uneven_values(mesh.size(), seed);
    std::vector<float> renumbered(values.size());
    for (int rank = 0; rank < mesh.size(); ++rank) {
      renumbered[static_cast<std::size_t>(rank)] =
          values[static_cast<std::size_t>(mesh.data_rank_of(rank))];
    }
    differing += same_bits(hierarchical_sum(mesh, values), tree_sum(renumbered)) ? 0 : 1;
  }
  CHECK(differing > 0);
}

}  // namespace
}  // namespace troupe::train

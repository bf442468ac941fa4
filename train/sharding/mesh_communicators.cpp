#include "train/sharding/mesh_communicators.h"

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

std::uint64_t bytes_sent(const collective::Communicator& communicator) {
  std::uint64_t sum = 0;
  for (const auto& counter : communicator.counters()) sum += counter.algorithm_bytes_sent;
  return sum;
}

}  // namespace

Result<MeshCommunicators> MeshCommunicators::make(collective::Communicator& world,
                                                  const Mesh& mesh) {
  TROUPE_CHECK(mesh.size() == world.world_size(), "a mesh of {} for {} ranks", mesh.size(),
               world.world_size());
  MeshCommunicators made(world);
  if (mesh.size() == 1) return made;
  if (mesh.dp_shard == mesh.size()) {
    made.shard_ = made.by_data_rank_ = &world;
    return made;
  }
  if (mesh.dp_replicate == mesh.size()) {
    made.replicate_ = made.by_data_rank_ = &world;
    return made;
  }
  const int replica = mesh.replica_of(world.rank()), shard = mesh.shard_of(world.rank());
  std::vector<int> group, peers;
  std::vector<int> by_data_rank(static_cast<std::size_t>(mesh.size()));
  for (int member = 0; member < mesh.dp_shard; ++member)
    group.push_back(mesh.rank_at(replica, member));
  for (int other = 0; other < mesh.dp_replicate; ++other)
    peers.push_back(mesh.rank_at(other, shard));
  for (int rank = 0; rank < mesh.size(); ++rank)
    by_data_rank[static_cast<std::size_t>(mesh.data_rank_of(rank))] = rank;
  made.owned_.push_back(TROUPE_TRY(world.subgroup(group, "shard")));
  made.shard_ = made.owned_.back().get();
  made.owned_.push_back(TROUPE_TRY(world.subgroup(peers, "replicate")));
  made.replicate_ = made.owned_.back().get();
  made.owned_.push_back(TROUPE_TRY(world.subgroup(by_data_rank, "data")));
  made.by_data_rank_ = made.owned_.back().get();
  return made;
}

std::uint64_t MeshCommunicators::algorithm_bytes_sent() const {
  std::uint64_t sum = bytes_sent(*world_);
  for (const auto& communicator : owned_) sum += bytes_sent(*communicator);
  return sum;
}

}  // namespace troupe::train

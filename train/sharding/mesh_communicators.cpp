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

Result<MeshCommunicators> MeshCommunicators::make(EngineDevice& device, const Mesh& mesh) {
  MeshCommunicators made;
  made.world_ = device.world();
  const collective::Communicator& world = *made.world_.device;
  TROUPE_CHECK(mesh.size() == world.world_size(), "a mesh of {} for {} ranks", mesh.size(),
               world.world_size());
  if (mesh.size() == 1) return made;
  if (mesh.dp_shard == mesh.size()) {
    made.shard_ = view(made.world_);
    made.by_data_rank_ = view(made.world_);
    return made;
  }
  if (mesh.dp_replicate == mesh.size()) {
    made.replicate_ = view(made.world_);
    made.by_data_rank_ = view(made.world_);
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
  const auto make = [&](EngineGroup& axis, const std::vector<int>& ranks,
                        std::string_view name) -> Status {
    made.owned_.push_back(TROUPE_TRY(device.subgroup(ranks, name)));
    axis = view(made.owned_.back());
    return {};
  };
  TROUPE_RETURN_IF_ERROR(make(made.shard_, group, "shard"));
  TROUPE_RETURN_IF_ERROR(make(made.replicate_, peers, "replicate"));
  TROUPE_RETURN_IF_ERROR(make(made.by_data_rank_, by_data_rank, "data"));
  return made;
}

std::uint64_t MeshCommunicators::algorithm_bytes_sent() const {
  std::uint64_t sum = bytes_sent(world());
  for (const EngineGroup& group : owned_) sum += bytes_sent(*group.device);
  return sum;
}

}  // namespace troupe::train

#pragma once
// The communicators of a mesh's axes, made of the world's.

#include <memory>
#include <vector>

#include "runtime/collective/communicator.h"
#include "train/sharding/strategy.h"

namespace troupe::train {

// Null where the axis has one member: there is nothing to communicate. Used by one thread at a
// time, like the world communicator whose links they share.
class MeshCommunicators {
 public:
  // Every rank of `world`, which must outlive the object, makes the same call.
  static Result<MeshCommunicators> make(collective::Communicator& world, const Mesh& mesh);

  collective::Communicator& world() const { return *world_; }
  // This rank's shard group, by shard.
  collective::Communicator* shard() const { return shard_; }
  // The ranks that hold the same shard, by replica.
  collective::Communicator* replicate() const { return replicate_; }
  // All ranks by data rank (Mesh::data_rank_of).
  collective::Communicator* by_data_rank() const { return by_data_rank_; }

  // Bytes that this rank has sent so far, by the formulas of collectives (headers not counted).
  std::uint64_t algorithm_bytes_sent() const;

 private:
  explicit MeshCommunicators(collective::Communicator& world) : world_(&world) {}

  collective::Communicator* world_;
  collective::Communicator* shard_ = nullptr;
  collective::Communicator* replicate_ = nullptr;
  collective::Communicator* by_data_rank_ = nullptr;
  std::vector<std::unique_ptr<collective::Communicator>> owned_;
};

}  // namespace troupe::train

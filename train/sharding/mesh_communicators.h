#pragma once
// The communicators of a mesh's axes, made of the world's.

#include <vector>

#include "train/sharding/engine_device.h"
#include "train/sharding/strategy.h"

namespace troupe::train {

// Of each axis a communicator over buffers of the engine's device and one over memory of the host
// (the same on the CPU). Null where the axis has one member: there is nothing to communicate. Used
// by one thread at a time, like the world communicator whose links they share.
class MeshCommunicators {
 public:
  // Every rank makes the same call. The device's communicators outlive the object.
  static Result<MeshCommunicators> make(EngineDevice& device, const Mesh& mesh);

  collective::Communicator& world() const { return *world_.device; }
  // This rank's shard group, by shard.
  collective::Communicator* shard() const { return shard_.device; }
  // The ranks that hold the same shard, by replica.
  collective::Communicator* replicate() const { return replicate_.device; }
  // All ranks by data rank (Mesh::data_rank_of).
  collective::Communicator* by_data_rank() const { return by_data_rank_.device; }

  // The same ranks, for what lies in the host's memory: norms, the word on a commit. Between pieces
  // of the queue.
  collective::Communicator& host_world() const { return *world_.host; }
  collective::Communicator* host_shard() const { return shard_.host; }
  collective::Communicator* host_replicate() const { return replicate_.host; }
  collective::Communicator* host_by_data_rank() const { return by_data_rank_.host; }

  // Bytes that this rank has sent so far, by the formulas of collectives (headers not counted). On
  // a GPU those of the device's buffers.
  std::uint64_t algorithm_bytes_sent() const;

 private:
  // Of a group that somebody else keeps.
  static EngineGroup view(const EngineGroup& group) { return {group.device, group.host, nullptr}; }

  EngineGroup world_, shard_, replicate_, by_data_rank_;
  std::vector<EngineGroup> owned_;
};

}  // namespace troupe::train

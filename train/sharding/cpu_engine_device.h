#pragma once
// An engine's buffers in memory of the host.

#include "train/sharding/engine_device.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// The queue runs pieces where they are submitted or, where they are to overlap with arithmetic, on
// a thread of its own. Buffers that ranks of one machine read lie in a segment.
class CpuEngineDevice final : public EngineDevice {
 public:
  // Both outlive the object.
  CpuEngineDevice(collective::Communicator& world, Operators& operators)
      : world_(world), operators_(operators) {}

  EngineGroup world() override { return {&world_, &world_, nullptr}; }
  Result<EngineGroup> subgroup(std::span<const int> ranks, std::string_view name) override;
  Result<WorkingMemory> make_memory(const WorkingBytes& bytes, bool shared) override;
  std::unique_ptr<CommunicationQueue> make_queue(bool overlaps) override;
  std::unique_ptr<ShardOperations> make_operations(const CommunicationQueue& queue) override;
  Status synchronize() override { return {}; }

 private:
  collective::Communicator& world_;
  Operators& operators_;
};

}  // namespace troupe::train

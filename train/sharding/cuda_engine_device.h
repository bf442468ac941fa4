#pragma once
// An engine's buffers in a GPU's memory.

#include <cstddef>
#include <memory>
#include <span>

#include "train/cuda/communicator/device_communicator.h"
#include "train/cuda/device/device.h"
#include "train/cuda/device/stream.h"
#include "train/sharding/engine_device.h"

namespace troupe::train {

struct CudaEngineDeviceOptions {
  std::shared_ptr<CudaDevice> device;
  // All ranks', of this generation; its subgroups are made by the engine. Given to an engine it is
  // in asynchronous mode.
  DeviceCommunicator* communicator = nullptr;
  // Where the model's arithmetic and the optimizer's are enqueued, by the engine's thread.
  CudaStream* compute = nullptr;
  // Where the working buffers lie: engine_bytes() of the device's memory, aligned to 256 bytes.
  // Empty: each engine allocates its own.
  std::span<std::byte> memory;
  // How long draining the queue may take; operations have their own deadlines.
  Duration limit = std::chrono::minutes(30);
};

// The queue is the communicator's stream (stream_queue.h), whatever overlaps says. StateBuffers are
// the device's then, and have no segment. A piece that fails aborts the communicator: the other
// ranks would wait for what will not come.
//
// When an engine ends, its pieces and what the compute stream has been given by then are waited for
// (ten seconds at most; memory that is still in use after them is not given back).
class CudaEngineDevice final : public EngineDevice {
 public:
  // All options outlive the object.
  explicit CudaEngineDevice(const CudaEngineDeviceOptions& options);

  EngineGroup world() override;
  Result<EngineGroup> subgroup(std::span<const int> ranks, std::string_view name) override;
  // kFailedPrecondition: the options' memory is too small.
  Result<WorkingMemory> make_memory(const WorkingBytes& bytes, bool shared) override;
  std::unique_ptr<CommunicationQueue> make_queue(bool overlaps) override;
  std::unique_ptr<ShardOperations> make_operations(const CommunicationQueue& queue) override;
  Status synchronize() override;

 private:
  const CudaEngineDeviceOptions options_;
};

}  // namespace troupe::train

#pragma once
// Collectives of devices over the host: down to pinned memory, through a CPU communicator, up
// again. For ranks that share a GPU, where NCCL refuses, and where there is no NCCL.

#include <memory>
#include <string>

#include "train/cuda/communicator/device_communicator.h"
#include "train/cuda/device/cuda_library.h"

namespace troupe::train {

struct StagedOptions {
  std::shared_ptr<const CudaLibrary> library;
  // This rank's device; outlives the communicator and its subgroups.
  TroupeCudaContext* context = nullptr;
  // Over the same ranks; outlives them, too. Its operations and theirs are in one order.
  collective::Communicator* host = nullptr;
  std::string name = "world";  // in errors
  // Four pieces of pinned memory of this size.
  std::int64_t chunk_bytes = std::int64_t{4} << 20;
};

// Local: sends nothing. Errors: the library's (memory).
Result<std::unique_ptr<DeviceCommunicator>> make_staged_communicator(const StagedOptions& options);

}  // namespace troupe::train

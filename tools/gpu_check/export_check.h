#pragma once
// Whether a descriptor alone keeps a device's memory: the road that state takes past a killed
// trainer.

#include <memory>

#include "runtime/base/status.h"
#include "train/cuda/device/cuda_library.h"

namespace troupe::tools::gpu {

// The other process of the check: allocates `bytes` that can be exported, fills them, sends the
// descriptor over `socket` and waits to be killed (or for the socket's end).
Status run_export_child(std::shared_ptr<const train::CudaLibrary> library, int device,
                        std::int64_t bytes, int socket);

}  // namespace troupe::tools::gpu

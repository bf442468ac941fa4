#pragma once
// Updates under a log in the device's memory: bits, rate, and one that kill -9 ends.

#include <memory>

#include "runtime/base/status.h"
#include "train/cuda/device/cuda_library.h"

namespace troupe::tools::gpu {

// The other process of the check that kills one: updates `elements` of memory that it exports, over
// `socket` tells the number of each update before it begins, and goes on until it is killed or has
// done many.
Status run_update_child(std::shared_ptr<const train::CudaLibrary> library, int device,
                        std::int64_t elements, int socket);

}  // namespace troupe::tools::gpu

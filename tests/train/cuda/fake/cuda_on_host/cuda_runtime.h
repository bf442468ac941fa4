#pragma once
// What the kernels' sources of train/cuda/library (*.cu) take from CUDA, where they are compiled
// for the host: launches are host_gpu.h's.

#include <cuda_runtime_api.h>

#include "tests/train/cuda/fake/host_gpu.h"

#define __global__
#define __launch_bounds__(...)
#define __grid_constant__

using troupe::tests::host_gpu::blockIdx;
using troupe::tests::host_gpu::dim3;
using troupe::tests::host_gpu::gridDim;
using troupe::tests::host_gpu::threadIdx;

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

inline cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  return troupe::tests::host_gpu::allow_shared_bytes(kernel, value) ? cudaSuccess
                                                                    : cudaErrorInvalidValue;
}

namespace troupe::train::cuda {
namespace host_gpu = troupe::tests::host_gpu;
}  // namespace troupe::train::cuda

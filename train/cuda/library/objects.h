#pragma once
// What the table's handles are, and entering a context.

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>

#include "train/cuda/device/table.h"
#include "train/cuda/library/errors.h"
#include "train/cuda/library/launches.h"

namespace troupe::train::cuda {

// cuBLASLt of one context; gemm.cpp.
struct GemmLibrary;
struct GemmLibraryDeleter {
  void operator()(GemmLibrary* library) const;
};
// cuDNN of one context; fused_attention.cpp.
struct AttentionLibrary;
struct AttentionLibraryDeleter {
  void operator()(AttentionLibrary* library) const;
};

}  // namespace troupe::train::cuda

// A device's primary context, shared with NVIDIA's libraries and every other TroupeCudaContext of
// this process.
struct TroupeCudaContext {
  int device = 0;
  int shared_bytes_per_block = 0;
  int multiprocessors = 0;
  std::mutex mutex;  // of what follows
  std::unique_ptr<troupe::train::cuda::GemmLibrary, troupe::train::cuda::GemmLibraryDeleter> gemm;
  std::unique_ptr<troupe::train::cuda::AttentionLibrary,
                  troupe::train::cuda::AttentionLibraryDeleter>
      attention;
};

struct TroupeCudaStream {
  TroupeCudaContext* context = nullptr;
  cudaStream_t stream = nullptr;
};

struct TroupeCudaEvent {
  TroupeCudaContext* context = nullptr;
  cudaEvent_t event = nullptr;
};

struct TroupeCudaMemory {
  TroupeCudaContext* context = nullptr;
  unsigned long long handle = 0;  // CUmemGenericAllocationHandle
  long long bytes = 0;
};

struct TroupeCudaGraph {
  TroupeCudaContext* context = nullptr;
  cudaGraphExec_t executable = nullptr;
};

namespace troupe::train::cuda {

// Makes the context's device the calling thread's. `what`: the function that was called.
int enter(const char* what, const TroupeCudaContext* context);

// Each fills its part of the table; those of kernels are in launches.h.
void fill_devices(TroupeCudaTable& table);
void fill_memory(TroupeCudaTable& table);
void fill_streams(TroupeCudaTable& table);
void fill_gemm(TroupeCudaTable& table);
void fill_fused_attention(TroupeCudaTable& table);
void fill_groups(TroupeCudaTable& table);
void fill_graphs(TroupeCudaTable& table);

}  // namespace troupe::train::cuda

#pragma once
// What the sources of kernels use of the rest of the library: no more, and nothing that says what a
// stream is. Tests compile the same sources for the host and have these functions for streams of
// their own.

#include <cuda_runtime_api.h>

#include "train/cuda/device/table.h"
#include "train/cuda/library/errors.h"

namespace troupe::train::cuda {

// Makes the stream's device the calling thread's. `what`: the function that was called.
int enter(const char* what, const TroupeCudaStream* stream);

// After a launch: OK, or "rms_norm_forward of 4096 x 896: cudaError…".
int launched(const char* what, long long rows, long long width);

// What kernels are started on.
cudaStream_t cuda_stream(const TroupeCudaStream* stream);

// Of the stream's device: shared memory that a block may have, opted in, in bytes.
int shared_bytes_per_block(const TroupeCudaStream* stream);
int multiprocessors(const TroupeCudaStream* stream);

// Each fills its part of the table.
void fill_elementwise(TroupeCudaTable& table);
void fill_norms(TroupeCudaTable& table);
void fill_losses(TroupeCudaTable& table);
void fill_attention(TroupeCudaTable& table);
void fill_attention_dropout(TroupeCudaTable& table);
void fill_attention_mask(TroupeCudaTable& table);
void fill_optimizer(TroupeCudaTable& table);
void fill_fp8(TroupeCudaTable& table);

}  // namespace troupe::train::cuda

#pragma once
// What errors.h and launches.h of train/cuda/library know of CUDA, on the host. Found before the
// toolkit's, by the sources of the tests' GPU alone.

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };

// Nobody has one here: kernels are started on streams of the tests'.
struct CUstream_st;
using cudaStream_t = CUstream_st*;

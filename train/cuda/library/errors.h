#pragma once
// How the library's functions fail: a code, and a text that the calling thread may ask for.

#include <cuda_runtime_api.h>

#include <string>

#include "train/cuda/device/table.h"

namespace troupe::train::cuda {

// Keeps `text` for error_text() of this thread. Returns `code`.
int fail(TroupeCudaCode code, std::string text);
// Of the last failure; "" before the first.
const char* last_failure();

// What a failure means for its caller. Errors after which nothing in the context works any more are
// DEVICE_LOST.
TroupeCudaCode code_of(cudaError_t error);

// OK, or the failure "what: cudaErrorInvalidValue (invalid argument)".
int check(cudaError_t error, const std::string& what);

// What is wrong with the calling thread's device where another library says that something is: the
// vendor's libraries have runtimes of their own, whose failures this library's cudaGetLastError()
// does not know; but every call into a broken context answers with what broke it. cudaSuccess: the
// device is well.
cudaError_t device_error();

// OK, or the failure "what: rows is 0", for sizes that must be positive.
int need_positive(const char* what, const char* name, long long value);

}  // namespace troupe::train::cuda

// Leaves the function with what a call answered, unless that is OK.
#define TROUPE_CUDA_RETURN_IF_FAILED(call)                               \
  do {                                                                   \
    if (const int code_ = (call); code_ != TROUPE_CUDA_OK) return code_; \
  } while (false)

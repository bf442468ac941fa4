#include "train/cuda/library/errors.h"

#include <fmt/format.h>

namespace troupe::train::cuda {
namespace {

thread_local std::string last_text;

}  // namespace

int fail(TroupeCudaCode code, std::string text) {
  last_text = std::move(text);
  return code;
}

const char* last_failure() { return last_text.c_str(); }

TroupeCudaCode code_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return TROUPE_CUDA_OK;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidHostPointer:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidResourceType:
      return TROUPE_CUDA_INVALID;
    case cudaErrorMemoryAllocation:
      return TROUPE_CUDA_OUT_OF_MEMORY;
    case cudaErrorNotReady:
      return TROUPE_CUDA_NOT_READY;
    case cudaErrorNotSupported:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
    case cudaErrorPeerAccessUnsupported:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorCallRequiresNewerDriver:
      return TROUPE_CUDA_UNSUPPORTED;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorInitializationError:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSharedObjectInitFailed:
      return TROUPE_CUDA_UNAVAILABLE;
    // The sticky ones: every later call in this process answers the same.
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorMpsRpcFailure:
    case cudaErrorExternalDevice:
      return TROUPE_CUDA_DEVICE_LOST;
    default:
      return TROUPE_CUDA_FAILED;
  }
}

int check(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return TROUPE_CUDA_OK;
  // Failures that are not sticky would else be found again by the next launch's check.
  cudaGetLastError();
  if (error == cudaErrorNotReady) return fail(TROUPE_CUDA_NOT_READY, what + ": not done yet");
  std::string text =
      fmt::format("{}: {} ({})", what, cudaGetErrorName(error), cudaGetErrorString(error));
  if (error == cudaErrorNoKernelImageForDevice)
    text +=
        "; libtroupe_cuda.so holds no code for this GPU: build it with its architecture in "
        "TROUPE_CUDA_ARCHITECTURES";
  return fail(code_of(error), std::move(text));
}

cudaError_t device_error() {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  std::size_t unused = 0, total = 0;
  const cudaError_t error = cudaMemGetInfo(&unused, &total);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

int need_positive(const char* what, const char* name, long long value) {
  if (value > 0) return TROUPE_CUDA_OK;
  return fail(TROUPE_CUDA_INVALID, fmt::format("{}: {} is {}", what, name, value));
}

}  // namespace troupe::train::cuda

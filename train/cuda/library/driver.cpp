#include "train/cuda/library/driver.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <mutex>

#include "train/cuda/library/errors.h"

namespace troupe::train::cuda {
namespace {

// The newest of these functions came with CUDA 10.2 and did not change.
constexpr unsigned kVersion = 10020;

template <class F>
int find(const char* name, F& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  TROUPE_CUDA_RETURN_IF_FAILED(
      check(cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result),
            fmt::format("looking for the driver's {}", name)));
  if (result != cudaDriverEntryPointSuccess || !found)
    return fail(TROUPE_CUDA_UNAVAILABLE,
                fmt::format("the NVIDIA driver has no {}: it is too old", name));
  function = reinterpret_cast<F>(found);
  return TROUPE_CUDA_OK;
}

int find_all(Driver& d) {
  TROUPE_CUDA_RETURN_IF_FAILED(find("cuDeviceGetAttribute", d.device_get_attribute));
  TROUPE_CUDA_RETURN_IF_FAILED(find("cuMemGetAllocationGranularity", d.get_granularity));
  TROUPE_CUDA_RETURN_IF_FAILED(find("cuMemCreate", d.create));
  TROUPE_CUDA_RETURN_IF_FAILED(find("cuMemRelease", d.release));
  TROUPE_CUDA_RETURN_IF_FAILED(find("cuMemExportToShareableHandle", d.export_handle));
  TROUPE_CUDA_RETURN_IF_FAILED(find("cuMemImportFromShareableHandle", d.import_handle));
  TROUPE_CUDA_RETURN_IF_FAILED(find("cuMemAddressReserve", d.reserve));
  TROUPE_CUDA_RETURN_IF_FAILED(find("cuMemAddressFree", d.free_address));
  TROUPE_CUDA_RETURN_IF_FAILED(find("cuMemMap", d.map));
  TROUPE_CUDA_RETURN_IF_FAILED(find("cuMemUnmap", d.unmap));
  return find("cuMemSetAccess", d.set_access);
}

}  // namespace

int driver(const Driver** functions) {
  static std::mutex mutex;
  static Driver found;
  static bool complete = false;
  const std::lock_guard lock(mutex);
  if (!complete) {
    TROUPE_CUDA_RETURN_IF_FAILED(find_all(found));
    complete = true;
  }
  *functions = &found;
  return TROUPE_CUDA_OK;
}

int check_driver(CUresult result, const std::string& what) {
  return check(static_cast<cudaError_t>(result), what);
}

}  // namespace troupe::train::cuda

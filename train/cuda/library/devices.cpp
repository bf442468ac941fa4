// Devices and contexts.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "train/cuda/library/driver.h"
#include "train/cuda/library/dynamic_library.h"
#include "train/cuda/library/objects.h"
#include "train/cuda/library/vendor_versions.h"

namespace troupe::train::cuda {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

int device_count(std::int32_t* count) {
  int found = 0;
  const cudaError_t error = cudaGetDeviceCount(&found);
  *count = found;
  if (error == cudaSuccess) return TROUPE_CUDA_OK;
  *count = 0;
  TROUPE_CUDA_RETURN_IF_FAILED([&] {
    if (error != cudaErrorInsufficientDriver && error != cudaErrorStubLibrary &&
        error != cudaErrorNoDevice)
      return check(error, "counting GPUs");
    cudaGetLastError();
    int version = 0;
    cudaDriverGetVersion(&version);
    // The runtime then speaks of a driver that is too old.
    if (version == 0 || error == cudaErrorStubLibrary)
      return fail(TROUPE_CUDA_UNAVAILABLE,
                  fmt::format("no NVIDIA driver is on this machine, or this container is not given "
                              "it ({})",
                              cudaGetErrorName(error)));
    if (error == cudaErrorInsufficientDriver)
      return fail(TROUPE_CUDA_UNAVAILABLE,
                  fmt::format("the NVIDIA driver serves CUDA {}, libtroupe_cuda.so was built with "
                              "CUDA {}: update the driver, or build with its toolkit",
                              version_text(version), version_text(CUDART_VERSION)));
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return fail(
        TROUPE_CUDA_UNAVAILABLE,
        fmt::format("the NVIDIA driver shows this process no GPU (CUDA_VISIBLE_DEVICES is "
                    "{}): {}",
                    visible ? fmt::format("'{}'", visible) : "not set", cudaGetErrorName(error)));
  }());
  return TROUPE_CUDA_OK;
}

template <std::size_t kSize>
void put_text(char (&to)[kSize], const std::string& text) {
  std::memset(to, 0, kSize);
  std::memcpy(to, text.data(), std::min(text.size(), kSize - 1));
}

// As nvidia-smi shows it.
std::string uuid_text(const cudaDeviceProp& properties) {
  std::string text = std::strstr(properties.name, " MIG ") ? "MIG-" : "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(properties.uuid.bytes[i]));
  }
  return text;
}

int device_attribute(const Driver& driver, CUdevice_attribute attribute, int index, int* value) {
  return check_driver(
      driver.device_get_attribute(value, attribute, index),
      fmt::format("cuDeviceGetAttribute {} of device {}", static_cast<int>(attribute), index));
}

int device_info(std::int32_t index, TroupeCudaDevice* device) {
  cudaDeviceProp properties{};
  TROUPE_CUDA_RETURN_IF_FAILED(check(cudaGetDeviceProperties(&properties, index),
                                     fmt::format("cudaGetDeviceProperties of device {}", index)));
  const Driver* functions = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(driver(&functions));
  int virtual_memory = 0, descriptors = 0, version = 0;
  TROUPE_CUDA_RETURN_IF_FAILED(device_attribute(
      *functions, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, index, &virtual_memory));
  TROUPE_CUDA_RETURN_IF_FAILED(
      device_attribute(*functions, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                       index, &descriptors));
  TROUPE_CUDA_RETURN_IF_FAILED(check(cudaDriverGetVersion(&version), "cudaDriverGetVersion"));
  *device = {};
  put_text(device->name, properties.name);
  put_text(device->uuid, uuid_text(properties));
  put_text(device->pci_bus, fmt::format("{:08X}:{:02X}:{:02X}.0", properties.pciDomainID,
                                        properties.pciBusID, properties.pciDeviceID));
  device->compute_major = properties.major;
  device->compute_minor = properties.minor;
  device->multiprocessors = properties.multiProcessorCount;
  device->memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  device->l2_cache_bytes = properties.l2CacheSize;
  device->shared_bytes_per_block = static_cast<std::int32_t>(properties.sharedMemPerBlockOptin);
  device->can_export_memory = virtual_memory != 0 && descriptors != 0;
  device->has_bf16 = properties.major >= 8;
  device->driver_version = version;
  return TROUPE_CUDA_OK;
}

// The device's primary context is made here and stays until the process ends: NVIDIA's libraries
// share it.
int context_open(std::int32_t index, TroupeCudaContext** context) {
  *context = nullptr;
  std::int32_t count = 0;
  TROUPE_CUDA_RETURN_IF_FAILED(device_count(&count));
  if (index < 0 || index >= count)
    return fail(TROUPE_CUDA_INVALID,
                fmt::format("there is no device {}: this process sees {}", index, count));
  TROUPE_CUDA_RETURN_IF_FAILED(
      check(cudaSetDevice(index), fmt::format("cudaSetDevice of device {}", index)));
  TROUPE_CUDA_RETURN_IF_FAILED(
      check(cudaFree(nullptr), fmt::format("making the context of device {}", index)));
  auto made = std::make_unique<TroupeCudaContext>();
  made->device = index;
  for (const auto& [attribute, value] :
       {std::pair{cudaDevAttrMaxSharedMemoryPerBlockOptin, &made->shared_bytes_per_block},
        {cudaDevAttrMultiProcessorCount, &made->multiprocessors}})
    TROUPE_CUDA_RETURN_IF_FAILED(check(cudaDeviceGetAttribute(value, attribute, index),
                                       fmt::format("cudaDeviceGetAttribute of device {}", index)));
  *context = made.release();
  return TROUPE_CUDA_OK;
}

int context_close(TroupeCudaContext* context) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("context_close", context));
  delete context;
  return TROUPE_CUDA_OK;
}

int context_synchronize(TroupeCudaContext* context) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("context_synchronize", context));
  return check(cudaDeviceSynchronize(),
               fmt::format("cudaDeviceSynchronize of device {}", context->device));
}

int memory_free_bytes(TroupeCudaContext* context, std::int64_t* free_bytes,
                      std::int64_t* total_bytes) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("memory_free_bytes", context));
  std::size_t unused = 0, total = 0;
  TROUPE_CUDA_RETURN_IF_FAILED(check(cudaMemGetInfo(&unused, &total),
                                     fmt::format("cudaMemGetInfo of device {}", context->device)));
  *free_bytes = static_cast<std::int64_t>(unused);
  *total_bytes = static_cast<std::int64_t>(total);
  return TROUPE_CUDA_OK;
}

int versions(TroupeCudaVersions* found) {
  *found = {};
  int runtime = 0;
  TROUPE_CUDA_RETURN_IF_FAILED(check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion"));
  found->runtime = runtime;
  found->cublaslt = cublaslt_version();
  found->cudnn = cudnn_version();
  found->nccl = nccl_version();
  return TROUPE_CUDA_OK;
}

}  // namespace

int enter(const char* what, const TroupeCudaContext* context) {
  if (!context) return fail(TROUPE_CUDA_INVALID, std::string(what) + ": the context is null");
  const cudaError_t error = cudaSetDevice(context->device);
  if (error == cudaSuccess) return TROUPE_CUDA_OK;
  return check(error, fmt::format("{}: cudaSetDevice of device {}", what, context->device));
}

int enter(const char* what, const TroupeCudaStream* stream) {
  if (!stream) return fail(TROUPE_CUDA_INVALID, std::string(what) + ": the stream is null");
  return enter(what, stream->context);
}

int launched(const char* what, long long rows, long long width) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return TROUPE_CUDA_OK;
  return check(error, fmt::format("{} of {} x {}", what, rows, width));
}

cudaStream_t cuda_stream(const TroupeCudaStream* stream) { return stream->stream; }

int shared_bytes_per_block(const TroupeCudaStream* stream) {
  return stream->context->shared_bytes_per_block;
}

int multiprocessors(const TroupeCudaStream* stream) { return stream->context->multiprocessors; }

int cudnn_version() {
  static DynamicLibrary library({"libcudnn.so.9"});
  std::size_t (*version)() = nullptr;
  library.find("cudnnGetVersion", version);
  return version ? static_cast<int>(version()) : 0;
}

void fill_devices(TroupeCudaTable& table) {
  table.versions = versions;
  table.device_count = device_count;
  table.device_info = device_info;
  table.context_open = context_open;
  table.context_close = context_close;
  table.context_synchronize = context_synchronize;
  table.memory_free_bytes = memory_free_bytes;
}

}  // namespace troupe::train::cuda

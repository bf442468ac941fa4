// Memory: allocations of the device, which have a handle, descriptors and addresses apart, and
// pinned memory of the host.

#include <fmt/format.h>

#include <algorithm>

#include "train/cuda/library/driver.h"
#include "train/cuda/library/objects.h"

namespace troupe::train::cuda {
namespace {

CUmemAllocationProp properties_of(const TroupeCudaContext* context, bool exportable) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = context->device;
  properties.requestedHandleTypes =
      exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  return properties;
}

int memory_granularity(TroupeCudaContext* context, std::int64_t* bytes) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("memory_granularity", context));
  const Driver* functions = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(driver(&functions));
  CUmemAllocationProp properties = properties_of(context, false);
  std::size_t found = 0, of_exported = 0;
  TROUPE_CUDA_RETURN_IF_FAILED(check_driver(
      functions->get_granularity(&found, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      fmt::format("cuMemGetAllocationGranularity of device {}", context->device)));
  // Each specification has its own, powers of two; a device that exports nothing has none of these.
  properties = properties_of(context, true);
  if (functions->get_granularity(&of_exported, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) ==
      CUDA_SUCCESS)
    found = std::max(found, of_exported);
  *bytes = static_cast<std::int64_t>(found);
  return TROUPE_CUDA_OK;
}

int memory_create(TroupeCudaContext* context, std::int64_t bytes, std::int32_t exportable,
                  TroupeCudaMemory** memory) {
  *memory = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(enter("memory_create", context));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive("memory_create", "bytes", bytes));
  const Driver* functions = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(driver(&functions));
  const CUmemAllocationProp properties = properties_of(context, exportable != 0);
  CUmemGenericAllocationHandle handle = 0;
  TROUPE_CUDA_RETURN_IF_FAILED(
      check_driver(functions->create(&handle, static_cast<std::size_t>(bytes), &properties, 0),
                   fmt::format("cuMemCreate of {} bytes on device {}", bytes, context->device)));
  *memory = new TroupeCudaMemory{context, handle, bytes};
  return TROUPE_CUDA_OK;
}

int memory_export(TroupeCudaMemory* memory, std::int32_t* descriptor) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("memory_export", memory->context));
  const Driver* functions = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(driver(&functions));
  int made = -1;
  TROUPE_CUDA_RETURN_IF_FAILED(check_driver(
      functions->export_handle(&made, memory->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      fmt::format("cuMemExportToShareableHandle of {} bytes on device {}", memory->bytes,
                  memory->context->device)));
  *descriptor = made;
  return TROUPE_CUDA_OK;
}

int memory_import(TroupeCudaContext* context, std::int32_t descriptor, std::int64_t bytes,
                  TroupeCudaMemory** memory) {
  *memory = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(enter("memory_import", context));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive("memory_import", "bytes", bytes));
  const Driver* functions = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(driver(&functions));
  CUmemGenericAllocationHandle handle = 0;
  // The descriptor travels as the pointer's value.
  TROUPE_CUDA_RETURN_IF_FAILED(check_driver(
      functions->import_handle(&handle,
                               reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)),
                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      fmt::format("cuMemImportFromShareableHandle of descriptor {} on device {}", descriptor,
                  context->device)));
  *memory = new TroupeCudaMemory{context, handle, bytes};
  return TROUPE_CUDA_OK;
}

int memory_release(TroupeCudaMemory* memory) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("memory_release", memory->context));
  const Driver* functions = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(driver(&functions));
  const int code = check_driver(
      functions->release(memory->handle),
      fmt::format("cuMemRelease of {} bytes on device {}", memory->bytes, memory->context->device));
  delete memory;
  return code;
}

int memory_map(TroupeCudaMemory* memory, void** device) {
  *device = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(enter("memory_map", memory->context));
  const Driver* functions = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(driver(&functions));
  const auto bytes = static_cast<std::size_t>(memory->bytes);
  const std::string of =
      fmt::format("of {} bytes on device {}", memory->bytes, memory->context->device);
  CUdeviceptr address = 0;
  TROUPE_CUDA_RETURN_IF_FAILED(
      check_driver(functions->reserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve " + of));
  int code = check_driver(functions->map(address, bytes, 0, memory->handle, 0), "cuMemMap " + of);
  if (code != TROUPE_CUDA_OK) {
    functions->free_address(address, bytes);
    return code;
  }
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = memory->context->device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  code = check_driver(functions->set_access(address, bytes, &access, 1), "cuMemSetAccess " + of);
  if (code != TROUPE_CUDA_OK) {
    functions->unmap(address, bytes);
    functions->free_address(address, bytes);
    return code;
  }
  *device = reinterpret_cast<void*>(address);
  return TROUPE_CUDA_OK;
}

int memory_unmap(TroupeCudaContext* context, void* device, std::int64_t bytes) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("memory_unmap", context));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive("memory_unmap", "bytes", bytes));
  const Driver* functions = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(driver(&functions));
  const auto address = reinterpret_cast<CUdeviceptr>(device);
  const auto size = static_cast<std::size_t>(bytes);
  const std::string of = fmt::format("of {} bytes at {} on device {}", bytes,
                                     static_cast<const void*>(device), context->device);
  TROUPE_CUDA_RETURN_IF_FAILED(check_driver(functions->unmap(address, size), "cuMemUnmap " + of));
  return check_driver(functions->free_address(address, size), "cuMemAddressFree " + of);
}

int host_allocate(TroupeCudaContext* context, std::int64_t bytes, void** host) {
  *host = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(enter("host_allocate", context));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive("host_allocate", "bytes", bytes));
  return check(cudaHostAlloc(host, static_cast<std::size_t>(bytes),
                             cudaHostAllocPortable | cudaHostAllocMapped),
               fmt::format("cudaHostAlloc of {} bytes", bytes));
}

int host_free(TroupeCudaContext* context, void* host) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter("host_free", context));
  return check(cudaFreeHost(host), "cudaFreeHost");
}

}  // namespace

void fill_memory(TroupeCudaTable& table) {
  table.memory_granularity = memory_granularity;
  table.memory_create = memory_create;
  table.memory_export = memory_export;
  table.memory_import = memory_import;
  table.memory_release = memory_release;
  table.memory_map = memory_map;
  table.memory_unmap = memory_unmap;
  table.host_allocate = host_allocate;
  table.host_free = host_free;
}

}  // namespace troupe::train::cuda

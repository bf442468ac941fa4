// The fake's memory: memfds, mapped where the device's memory would be.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tests/train/cuda/fake/fake_state.h"

namespace troupe::tests::fake {
namespace {

int no_room(TroupeCudaContext* context, std::int64_t bytes) {
  return state().fail(
      TROUPE_CUDA_OUT_OF_MEMORY,
      fmt::format("{} bytes of {} are taken, {} were asked for", state().allocated(context->device),
                  state().options().memory_bytes, bytes));
}

// Nobody says what new memory holds: NaNs, here. The beginning of large allocations, of which tests
// use little: every page that is touched takes time.
bool spoil(int descriptor, std::int64_t bytes) {
  constexpr std::int64_t kSpoiledBytes = 4 << 20;
  const auto size = static_cast<std::size_t>(std::min(bytes, kSpoiledBytes));
  void* at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (at == MAP_FAILED) return false;
  std::memset(at, 0xff, size);
  ::munmap(at, size);
  return true;
}

int memory_free_bytes(TroupeCudaContext* context, std::int64_t* free_bytes,
                      std::int64_t* total_bytes) {
  if (const int code = state().enter("memory_free_bytes", context->device)) return code;
  *total_bytes = state().options().memory_bytes;
  *free_bytes = *total_bytes - state().allocated(context->device);
  return TROUPE_CUDA_OK;
}

int memory_granularity(TroupeCudaContext* context, std::int64_t* bytes) {
  if (const int code = state().enter("memory_granularity", context->device)) return code;
  *bytes = state().options().granularity_bytes;
  return TROUPE_CUDA_OK;
}

int memory_create(TroupeCudaContext* context, std::int64_t bytes, std::int32_t exportable,
                  TroupeCudaMemory** memory) {
  if (const int code = state().enter("memory_create", context->device)) return code;
  const FakeCudaOptions options = state().options();
  if (bytes <= 0 || bytes % options.granularity_bytes != 0)
    return state().fail(TROUPE_CUDA_INVALID, fmt::format("{} bytes are no whole granules", bytes));
  if (exportable && !options.can_export_memory)
    return state().fail(TROUPE_CUDA_UNSUPPORTED, "memory of this device cannot be exported");
  auto charge = state().charge(context->device, bytes);
  if (!charge) return no_room(context, bytes);
  const int descriptor = ::memfd_create("fake-cuda", MFD_CLOEXEC);
  if (descriptor < 0 || ::ftruncate(descriptor, bytes) != 0 || !spoil(descriptor, bytes)) {
    if (descriptor >= 0) ::close(descriptor);
    return state().fail(TROUPE_CUDA_OUT_OF_MEMORY, std::strerror(errno));
  }
  *memory = new TroupeCudaMemory{context, descriptor, bytes, std::move(charge)};
  state().count_object("memory handle", 1);
  return TROUPE_CUDA_OK;
}

int memory_export(TroupeCudaMemory* memory, std::int32_t* descriptor) {
  if (const int code = state().enter("memory_export", memory->context->device)) return code;
  // As a driver may: who wants it closed when a program is started says so.
  *descriptor = ::fcntl(memory->descriptor, F_DUPFD, 0);
  if (*descriptor < 0) return state().fail(TROUPE_CUDA_FAILED, std::strerror(errno));
  return TROUPE_CUDA_OK;
}

int memory_import(TroupeCudaContext* context, std::int32_t descriptor, std::int64_t bytes,
                  TroupeCudaMemory** memory) {
  if (const int code = state().enter("memory_import", context->device)) return code;
  struct stat status {};
  const int own = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (own < 0 || ::fstat(own, &status) != 0 || status.st_size != bytes) {
    if (own >= 0) ::close(own);
    return state().fail(
        TROUPE_CUDA_INVALID,
        fmt::format("descriptor {} is not an allocation of {} bytes", descriptor, bytes));
  }
  // Whoever exported it may have been charged for it in this process: imports are not counted
  // twice.
  *memory = new TroupeCudaMemory{context, own, bytes, nullptr};
  state().count_object("memory handle", 1);
  return TROUPE_CUDA_OK;
}

int memory_release(TroupeCudaMemory* memory) {
  const int code = state().enter("memory_release");
  ::close(memory->descriptor);
  delete memory;
  state().count_object("memory handle", -1);
  return code;
}

int memory_map(TroupeCudaMemory* memory, void** device) {
  if (const int code = state().enter("memory_map", memory->context->device)) return code;
  void* at = ::mmap(nullptr, static_cast<std::size_t>(memory->bytes), PROT_READ | PROT_WRITE,
                    MAP_SHARED, memory->descriptor, 0);
  if (at == MAP_FAILED) return state().fail(TROUPE_CUDA_FAILED, std::strerror(errno));
  state().add_range(at, {memory->bytes, false, memory->charge});
  state().count_object("mapping", 1);
  *device = at;
  return TROUPE_CUDA_OK;
}

int memory_unmap(TroupeCudaContext* context, void* device, std::int64_t bytes) {
  const int code = state().enter("memory_unmap");
  // A device that is lost runs nothing any more, and nobody waits for it: here its streams go on,
  // as they do before pinned memory goes.
  if (state().lost(context->device)) wait_for_streams(context);
  if (!state().remove_range(device))
    return state().fail(TROUPE_CUDA_INVALID, "nothing is mapped there");
  ::munmap(device, static_cast<std::size_t>(bytes));
  state().count_object("mapping", -1);
  return code;
}

int host_allocate(TroupeCudaContext* context, std::int64_t bytes, void** host) {
  if (const int code = state().enter("host_allocate", context->device)) return code;
  const auto size = (static_cast<std::size_t>(bytes) + 4095) / 4096 * 4096;
  void* at = std::aligned_alloc(4096, size);
  if (!at) return state().fail(TROUPE_CUDA_OUT_OF_MEMORY, "no pinned memory");
  state().add_range(at, {static_cast<std::int64_t>(size), true, nullptr});
  state().count_object("pinned memory", 1);
  *host = at;
  return TROUPE_CUDA_OK;
}

int host_free(TroupeCudaContext* context, void* host) {
  const int code = state().enter("host_free");
  if (state().lost(context->device)) wait_for_streams(context);
  if (!state().remove_range(host))
    return state().fail(TROUPE_CUDA_INVALID, "no pinned memory is there");
  std::free(host);
  state().count_object("pinned memory", -1);
  return code;
}

}  // namespace

void fill_memory(TroupeCudaTable& table) {
  table.memory_free_bytes = memory_free_bytes;
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

}  // namespace troupe::tests::fake

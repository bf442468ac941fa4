#include "train/cuda/device/device_memory.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

// What the shares leave of `bytes` (rounding up to granules) belongs to none of them.
std::vector<MemoryShare> completed(std::vector<MemoryShare> shares, std::int64_t bytes) {
  std::int64_t named = 0;
  for (const MemoryShare& share : shares) named += share.bytes;
  TROUPE_CHECK(named <= bytes, "{} of {}", named, bytes);
  if (named < bytes) shares.push_back({MemoryPurpose::kOther, bytes - named});
  return shares;
}

}  // namespace

Result<DeviceMemory> DeviceMemory::allocate(std::shared_ptr<CudaDevice> device, std::int64_t bytes,
                                            std::string_view name, std::vector<MemoryShare> shares,
                                            bool exportable) {
  TROUPE_CHECK(bytes > 0, "{}: {} bytes", name, bytes);
  if (exportable && !device->info().can_export_memory)
    return error(Code::kUnsupported,
                 "{} cannot export memory as descriptors, which {} needs to outlive its process",
                 device->name(), name);
  const std::int64_t granule = device->granularity_bytes();
  DeviceMemory memory;
  memory.device_ = std::move(device);
  memory.bytes_ = (bytes + granule - 1) / granule * granule;
  CudaDevice& on = *memory.device_;
  const int code =
      on.table().memory_create(on.context(), memory.bytes_, exportable, &memory.handle_);
  if (code == TROUPE_CUDA_OUT_OF_MEMORY) {
    const std::string words = on.table().error_text();
    const Result<CudaDevice::MemoryUse> use = on.memory_use();
    MemoryShortage shortage{.device = on.name(),
                            .name = std::string(name),
                            .asked = by_purpose(shares),
                            .held = on.ledger().held(),
                            .asked_bytes = memory.bytes_,
                            .granularity_bytes = granule};
    if (use.ok()) shortage.free_bytes = use->free_bytes, shortage.total_bytes = use->total_bytes;
    return error(Code::kOutOfMemory, "{} [{}]", describe_shortage(shortage), words);
  }
  TROUPE_RETURN_IF_ERROR(on.status(code, fmt::format("memory for {}", name)));
  TROUPE_RETURN_IF_ERROR(memory.map(name, std::move(shares)));
  if (!exportable)
    on.given_back(on.table().memory_release(std::exchange(memory.handle_, nullptr)), name);
  return memory;
}

Result<DeviceMemory> DeviceMemory::import(std::shared_ptr<CudaDevice> device, int descriptor,
                                          std::int64_t bytes, std::string_view name,
                                          std::vector<MemoryShare> shares) {
  DeviceMemory memory;
  memory.device_ = std::move(device);
  memory.bytes_ = bytes;
  CudaDevice& on = *memory.device_;
  TROUPE_RETURN_IF_ERROR(
      on.status(on.table().memory_import(on.context(), descriptor, bytes, &memory.handle_),
                fmt::format("taking over {}", name)));
  TROUPE_RETURN_IF_ERROR(memory.map(name, std::move(shares)));
  return memory;
}

Status DeviceMemory::map(std::string_view name, std::vector<MemoryShare> shares) {
  void* at = nullptr;
  TROUPE_RETURN_IF_ERROR(
      device_->status(device_->table().memory_map(handle_, &at), fmt::format("mapping {}", name)));
  data_ = static_cast<std::byte*>(at);
  shares_ = completed(std::move(shares), bytes_);
  device_->ledger().add(shares_);
  return {};
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  device_ = std::move(other.device_);
  handle_ = std::exchange(other.handle_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  shares_ = std::move(other.shares_);
  other.shares_.clear();
  return *this;
}

void DeviceMemory::release() {
  if (!device_) return;
  const TroupeCudaTable& table = device_->table();
  if (data_) {
    device_->given_back(table.memory_unmap(device_->context(), data_, bytes_), "unmapping memory");
    device_->ledger().remove(shares_);
  }
  if (handle_) device_->given_back(table.memory_release(handle_), "giving a handle back");
  data_ = nullptr, handle_ = nullptr;
  device_.reset();
}

Result<UniqueFd> DeviceMemory::export_descriptor() const {
  if (!handle_)
    return error(Code::kFailedPrecondition, "memory that was not allocated to be exported");
  std::int32_t descriptor = -1;
  TROUPE_RETURN_IF_ERROR(
      device_->status(device_->table().memory_export(handle_, &descriptor), "exporting memory"));
  UniqueFd exported(descriptor);
  // A driver does not say how it opens them, and a program that is started meanwhile would keep the
  // memory.
  if (::fcntl(exported.get(), F_SETFD, FD_CLOEXEC) != 0)
    return error(Code::kInternal, "{}: exported memory: {}", device_->name(), std::strerror(errno));
  return exported;
}

Result<PinnedMemory> PinnedMemory::allocate(std::shared_ptr<CudaDevice> device, std::int64_t bytes,
                                            std::string_view name) {
  PinnedMemory memory;
  memory.device_ = std::move(device);
  memory.bytes_ = bytes;
  CudaDevice& on = *memory.device_;
  void* at = nullptr;
  const int code = on.table().host_allocate(on.context(), bytes, &at);
  if (code == TROUPE_CUDA_OUT_OF_MEMORY)
    return error(Code::kOutOfMemory,
                 "{}: {} of pinned host memory for {} could not be had: {}. It is never swapped: "
                 "look at the machine's free memory, the container's limit and `ulimit -l`",
                 on.name(), memory_size_text(bytes), name, on.table().error_text());
  TROUPE_RETURN_IF_ERROR(on.status(code, fmt::format("pinned memory for {}", name)));
  memory.data_ = static_cast<std::byte*>(at);
  return memory;
}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  device_ = std::move(other.device_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void PinnedMemory::release() {
  if (data_)
    device_->given_back(device_->table().host_free(device_->context(), data_),
                        "giving pinned memory back");
  data_ = nullptr;
  device_.reset();
}

}  // namespace troupe::train

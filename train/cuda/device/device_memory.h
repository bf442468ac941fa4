#pragma once
// Memory of a device and pinned memory of the host, owned.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "train/cuda/device/device.h"
#include "troupe/unique_fd.h"

namespace troupe::train {

// An allocation, mapped into this process's view of the device. Work that uses it must be done
// before it goes. Movable; one thread at a time.
class DeviceMemory {
 public:
  // Bytes are rounded up to whole granules. `name` stands in errors; `shares` say what for, and are
  // what the device's ledger counts (what they leave of the bytes counts as kOther). With
  // `exportable`, export_descriptor() works. kOutOfMemory tells what holds the memory;
  // kUnsupported: the device cannot export.
  static Result<DeviceMemory> allocate(std::shared_ptr<CudaDevice> device, std::int64_t bytes,
                                       std::string_view name, std::vector<MemoryShare> shares,
                                       bool exportable = false);
  // Of one purpose.
  static Result<DeviceMemory> allocate(std::shared_ptr<CudaDevice> device, std::int64_t bytes,
                                       std::string_view name, MemoryPurpose purpose) {
    return allocate(std::move(device), bytes, name, {{purpose, bytes}});
  }
  // An allocation that export_descriptor() gave, in this process or another one that may be gone:
  // its bytes as they were left. Does not take the descriptor. `bytes`: size() of it.
  static Result<DeviceMemory> import(std::shared_ptr<CudaDevice> device, int descriptor,
                                     std::int64_t bytes, std::string_view name,
                                     std::vector<MemoryShare> shares);

  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory() { release(); }

  std::byte* data() const { return data_; }
  std::int64_t size() const { return bytes_; }
  std::span<std::byte> bytes() const { return {data_, static_cast<std::size_t>(bytes_)}; }
  // A descriptor that keeps the bytes alive wherever it is held. kFailedPrecondition: not
  // exportable.
  Result<UniqueFd> export_descriptor() const;

 private:
  DeviceMemory() = default;
  Status map(std::string_view name, std::vector<MemoryShare> shares);
  void release();

  std::shared_ptr<CudaDevice> device_;
  TroupeCudaMemory* handle_ = nullptr;  // kept where it may be exported
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::vector<MemoryShare> shares_;
};

// Memory of the host that the device copies from and to without waiting.
class PinnedMemory {
 public:
  static Result<PinnedMemory> allocate(std::shared_ptr<CudaDevice> device, std::int64_t bytes,
                                       std::string_view name);
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory() { release(); }

  std::byte* data() const { return data_; }
  std::int64_t size() const { return bytes_; }

 private:
  PinnedMemory() = default;
  void release();

  std::shared_ptr<CudaDevice> device_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace troupe::train

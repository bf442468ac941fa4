#pragma once
// One allocation per rank, cut into named parts: what a keeper can hold by one descriptor.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "train/cuda/device/device_memory.h"

namespace troupe::train {

// Where the parts lie, before there is memory: a function of the parts alone, so that whoever takes
// an arena over finds them again.
class ArenaPlan {
 public:
  struct Part {
    std::string name;
    MemoryPurpose purpose = MemoryPurpose::kOther;
    std::int64_t offset = 0, bytes = 0;
  };
  // Parts begin at multiples of it: enough for any kernel's vectors.
  static constexpr std::int64_t kAlignBytes = 256;

  // Names are different; a part may have no bytes.
  void add(std::string name, MemoryPurpose purpose, std::int64_t bytes);
  // Of the arena.
  std::int64_t bytes() const { return bytes_; }
  const std::vector<Part>& parts() const { return parts_; }
  std::vector<MemoryShare> shares() const;

 private:
  std::vector<Part> parts_;
  std::int64_t bytes_ = 0;
};

// Not for use by two threads at once; parts may be.
class DeviceArena {
 public:
  enum class Outlives { kNothing, kProcess };
  // kOutOfMemory by purpose; kUnsupported where it must outlive the process and cannot.
  static Result<DeviceArena> allocate(std::shared_ptr<CudaDevice> device, const ArenaPlan& plan,
                                      Outlives outlives = Outlives::kNothing);
  // The arena of `bytes` (DeviceArena::bytes) behind a descriptor, with the contents that it has.
  // kFailedPrecondition where it is smaller than the plan.
  static Result<DeviceArena> import(std::shared_ptr<CudaDevice> device, const ArenaPlan& plan,
                                    int descriptor, std::int64_t bytes);

  // Of the part of this name, which the plan has.
  std::span<std::byte> part(std::string_view name) const;
  // The same as elements.
  template <typename T>
  std::span<T> part_of(std::string_view name) const {
    const std::span<std::byte> bytes = part(name);
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  // Of the whole allocation: whole granules.
  std::int64_t bytes() const { return memory_.size(); }
  Result<UniqueFd> export_descriptor() const { return memory_.export_descriptor(); }

 private:
  DeviceArena(const ArenaPlan& plan, DeviceMemory memory)
      : plan_(plan), memory_(std::move(memory)) {}
  ArenaPlan plan_;
  DeviceMemory memory_;
};

}  // namespace troupe::train

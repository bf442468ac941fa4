#include "train/cuda/device/device_arena.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

constexpr std::string_view kArenaName = "this rank's arena";

}  // namespace

void ArenaPlan::add(std::string name, MemoryPurpose purpose, std::int64_t bytes) {
  TROUPE_CHECK(bytes >= 0, "{}", name);
  TROUPE_CHECK(std::none_of(parts_.begin(), parts_.end(),
                            [&](const Part& part) { return part.name == name; }),
               "{}", name);
  parts_.push_back({std::move(name), purpose, bytes_, bytes});
  bytes_ += (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
}

std::vector<MemoryShare> ArenaPlan::shares() const {
  std::vector<MemoryShare> shares;
  for (const Part& part : parts_) shares.push_back({part.purpose, part.bytes});
  return shares;
}

Result<DeviceArena> DeviceArena::allocate(std::shared_ptr<CudaDevice> device, const ArenaPlan& plan,
                                          Outlives outlives) {
  return DeviceArena(
      plan, TROUPE_TRY(DeviceMemory::allocate(std::move(device), plan.bytes(), kArenaName,
                                              plan.shares(), outlives == Outlives::kProcess)));
}

Result<DeviceArena> DeviceArena::import(std::shared_ptr<CudaDevice> device, const ArenaPlan& plan,
                                        int descriptor, std::int64_t bytes) {
  if (bytes < plan.bytes())
    return error(Code::kFailedPrecondition,
                 "the arena that was kept has {} bytes, and {} are needed: it is of a run with "
                 "other settings",
                 bytes, plan.bytes());
  return DeviceArena(plan, TROUPE_TRY(DeviceMemory::import(std::move(device), descriptor, bytes,
                                                           kArenaName, plan.shares())));
}

std::span<std::byte> DeviceArena::part(std::string_view name) const {
  for (const ArenaPlan::Part& part : plan_.parts()) {
    if (part.name == name)
      return memory_.bytes().subspan(static_cast<std::size_t>(part.offset),
                                     static_cast<std::size_t>(part.bytes));
  }
  TROUPE_CHECK(false, "no part {}", name);
  return {};
}

}  // namespace troupe::train

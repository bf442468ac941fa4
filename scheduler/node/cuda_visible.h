#pragma once
// CUDA_VISIBLE_DEVICES: which GPUs a process may see, read and written.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/wire/gpu.h"

namespace troupe::scheduler {

inline constexpr const char* kCudaVisibleDevices = "CUDA_VISIBLE_DEVICES";
inline constexpr const char* kCudaDeviceOrder = "CUDA_DEVICE_ORDER";

// The devices that a process with this CUDA_VISIBLE_DEVICES sees, in its order, as the CUDA C++
// Programming Guide has it: indices, "GPU-" and as many digits of the UUID as are unique, "MIG-"
// and an instance's UUID; the first entry that names no device hides itself and what follows. As
// the driver does, an index of a divided GPU is its first instance, entries of another kind than
// the first are no devices, and an entry that stands twice hides everything. Indices are those of
// the PCI bus order.
std::vector<wire::GpuDevice> cuda_visible(std::string_view value,
                                          const std::vector<wire::GpuDevice>& devices);

// Whether `value` names devices by indices, which mean something else in another
// CUDA_DEVICE_ORDER.
bool names_by_index(std::string_view value);

// What CUDA calls the device: its UUID, or its index where that is not known. Empty: an amount
// without a device.
std::string cuda_name(const wire::GpuDevice& device);

// What a process is told that is to see these devices and no others.
std::map<std::string, std::string> cuda_environment(const std::vector<wire::GpuDevice>& devices);

// What a process that sees these devices is told of them besides (runtime/base/gpu_environment.h).
// `without_peer_access`: pairs of UUIDs.
std::map<std::string, std::string> gpu_facts_environment(
    const std::vector<wire::GpuDevice>& devices,
    const std::vector<std::pair<std::string, std::string>>& without_peer_access);

}  // namespace troupe::scheduler

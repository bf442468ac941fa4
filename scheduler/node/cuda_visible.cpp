#include "scheduler/node/cuda_visible.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "runtime/base/gpu_environment.h"

namespace troupe::scheduler {
namespace {

enum class Kind { kIndex, kGpu, kInstance };

std::string_view without_spaces(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

Kind kind_of(std::string_view entry) {
  if (entry.starts_with("GPU-")) return Kind::kGpu;
  return entry.starts_with("MIG-") ? Kind::kInstance : Kind::kIndex;
}

// The only device for which `names` is true; of a divided GPU, its first instance. Null: there is
// none, or more than one GPU.
template <typename Names>
const wire::GpuDevice* only(const std::vector<wire::GpuDevice>& devices, Names names) {
  const wire::GpuDevice* found = nullptr;
  for (const wire::GpuDevice& device : devices) {
    if (!names(device)) continue;
    if (found == nullptr) {
      found = &device;
    } else if (!device.is_instance() || device.parent_uuid != found->parent_uuid) {
      return nullptr;
    }
  }
  return found;
}

const wire::GpuDevice* find(std::string_view entry, Kind kind,
                            const std::vector<wire::GpuDevice>& devices) {
  switch (kind) {
    case Kind::kGpu:
      return only(devices, [&](const wire::GpuDevice& device) {
        return (device.is_instance() ? device.parent_uuid : device.uuid).starts_with(entry);
      });
    case Kind::kInstance: {
      const wire::GpuDevice* found = nullptr;
      for (const wire::GpuDevice& device : devices) {
        if (!device.is_instance() || !device.uuid.starts_with(entry)) continue;
        if (found != nullptr) return nullptr;
        found = &device;
      }
      return found;
    }
    case Kind::kIndex:
      break;
  }
  std::uint32_t index = 0;
  const auto parsed = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (parsed.ec != std::errc()) return nullptr;
  return only(devices, [&](const wire::GpuDevice& device) { return device.index == index; });
}

}  // namespace

std::vector<wire::GpuDevice> cuda_visible(std::string_view value,
                                          const std::vector<wire::GpuDevice>& devices) {
  std::vector<const wire::GpuDevice*> seen;
  std::optional<Kind> kind;
  while (!value.empty()) {
    const auto comma = std::min(value.find(','), value.size());
    const std::string_view entry = without_spaces(value.substr(0, comma));
    value.remove_prefix(std::min(comma + 1, value.size()));
    if (entry.empty() || kind.value_or(kind_of(entry)) != kind_of(entry)) break;
    kind = kind_of(entry);
    const wire::GpuDevice* device = find(entry, *kind, devices);
    if (device == nullptr) break;
    if (std::find(seen.begin(), seen.end(), device) != seen.end()) return {};
    seen.push_back(device);
  }
  std::vector<wire::GpuDevice> result;
  for (const wire::GpuDevice* device : seen) result.push_back(*device);
  return result;
}

bool names_by_index(std::string_view value) {
  value = without_spaces(value);
  return !value.empty() && kind_of(value) == Kind::kIndex;
}

std::string cuda_name(const wire::GpuDevice& device) {
  if (!device.uuid.empty()) return device.uuid;
  return device.minor_number >= 0 ? std::to_string(device.index) : std::string();
}

std::map<std::string, std::string> cuda_environment(const std::vector<wire::GpuDevice>& devices) {
  std::string visible;
  for (const wire::GpuDevice& device : devices) {
    const std::string name = cuda_name(device);
    if (name.empty()) continue;
    if (!visible.empty()) visible += ",";
    visible += name;
  }
  return {{kCudaVisibleDevices, visible}, {kCudaDeviceOrder, "PCI_BUS_ID"}};
}

std::map<std::string, std::string> gpu_facts_environment(
    const std::vector<wire::GpuDevice>& devices,
    const std::vector<std::pair<std::string, std::string>>& without_peer_access) {
  const auto seen = [&](const std::string& uuid) {
    return std::any_of(devices.begin(), devices.end(),
                       [&](const wire::GpuDevice& device) { return device.uuid == uuid; });
  };
  std::set<std::string> others;
  for (const auto& [one, other] : without_peer_access) {
    if (seen(one)) others.insert(other);
    if (seen(other)) others.insert(one);
  }
  std::map<std::string, std::string> facts;
  if (!others.empty()) {
    std::string& names = facts[kGpusWithoutPeerAccess];
    for (const std::string& uuid : others) names += (names.empty() ? "" : ",") + uuid;
  }
  const bool together = !devices.empty() && devices[0].numa_node >= 0 &&
                        std::all_of(devices.begin(), devices.end(), [&](const auto& device) {
                          return device.numa_node == devices[0].numa_node;
                        });
  if (together) facts[kGpuNumaNode] = std::to_string(devices[0].numa_node);
  return facts;
}

}  // namespace troupe::scheduler

#include "scheduler/node/resources_detect.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/base/machine.h"
#include "scheduler/node/cuda_visible.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {

int SystemMachine::affinity_cpu_count() const {
  // Machines with more CPUs than a cpu_set_t holds need a larger one.
  for (int cpus = CPU_SETSIZE; cpus <= (1 << 16); cpus *= 4) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    const std::size_t bytes = CPU_ALLOC_SIZE(cpus);
    const bool ok = set != nullptr && ::sched_getaffinity(0, bytes, set) == 0;
    const int count = ok ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return std::max(1u, std::thread::hardware_concurrency());
}

Result<std::shared_ptr<Nvml>> SystemMachine::nvml() const { return Nvml::open(); }

int detect_cpu_count(FileSystem& files, const Machine& machine) {
  return granted_cpu_count(files, machine.affinity_cpu_count());
}

namespace {

// By their files, /dev/nvidiaN; nothing where the driver has made none at all.
std::optional<std::vector<wire::GpuDevice>> devices_by_file(FileSystem& files) {
  const auto entries = files.list("/dev");
  if (!entries.ok()) return std::nullopt;
  bool any = false;
  std::vector<std::int32_t> minors;
  for (const DirectoryEntry& entry : *entries) {
    std::string_view name = entry.name;
    if (!name.starts_with("nvidia")) continue;
    any = true;
    name.remove_prefix(std::strlen("nvidia"));
    if (name.empty() || name.find_first_not_of("0123456789") != name.npos) continue;
    std::int32_t minor = 0;
    const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), minor);
    if (failure == std::errc()) minors.push_back(minor);
  }
  if (!any) return std::nullopt;
  std::sort(minors.begin(), minors.end());
  std::vector<wire::GpuDevice> devices;
  for (const std::int32_t minor : minors) {
    wire::GpuDevice device;
    device.index = static_cast<std::uint32_t>(devices.size());
    device.minor_number = minor;
    device.name = fmt::format("/dev/nvidia{}", minor);
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace

DetectedGpus detect_gpus(FileSystem& files, const Environment& environment,
                         const Machine& machine) {
  DetectedGpus detected;
  auto by_file = devices_by_file(files);
  std::vector<wire::GpuDevice>& devices = detected.gpus.devices;
  const auto use_files = [&](const Status& why) {
    detected.nvml.reset();
    // NVML's library without a driver: an image that is meant for machines with GPUs.
    if (!by_file) return;
    devices = std::move(*by_file);
    detected.problems.push_back(
        fmt::format("the GPUs are counted by their device files, and nobody watches their memory "
                    "and errors: {}",
                    why.message()));
  };
  if (auto nvml = machine.nvml(); nvml.ok()) {
    detected.nvml = std::move(*nvml);
    if (auto inventory = detected.nvml->devices(files); inventory.ok()) {
      devices = std::move(inventory->devices);
      detected.gpus.without_peer_access = std::move(inventory->without_peer_access);
      detected.problems = std::move(inventory->problems);
    } else {
      use_files(inventory.status());
    }
  } else {
    use_files(nvml.status());
  }
  if (const auto visible = environment.get(kCudaVisibleDevices)) {
    const bool mixed = std::any_of(devices.begin(), devices.end(), [&](const auto& device) {
      return device.name != devices.front().name;
    });
    if (detected.nvml && mixed && names_by_index(*visible) &&
        environment.get(kCudaDeviceOrder).value_or("") != "PCI_BUS_ID") {
      detected.problems.push_back(fmt::format(
          "{}={} counts in PCI bus order here, and in another order in programs, as these GPUs are "
          "of several kinds: set {}=PCI_BUS_ID, or name them by UUID",
          kCudaVisibleDevices, *visible, kCudaDeviceOrder));
    }
    devices = cuda_visible(*visible, devices);
  }
  if (!detected.nvml) return detected;
  for (const wire::GpuDevice& device : devices) {
    GpuReading reading = detected.nvml->read(device.uuid);
    if (!reading.status.ok()) detected.problems.push_back(reading.status.message());
    detected.gpus.readings.push_back(std::move(reading));
  }
  return detected;
}

Result<wire::Resources> detect_resources(FileSystem& files, const Machine& machine,
                                         const NodeGpus& gpus) {
  wire::Resources resources;
  resources[std::string(kCpu)] = detect_cpu_count(files, machine) * wire::kResourceUnit;
  resources[std::string(kMemory)] = TROUPE_TRY(detect_memory_bytes(files)) * wire::kResourceUnit;
  const auto count = static_cast<std::int64_t>(gpus.devices.size());
  if (count > 0) resources[std::string(kGpu)] = count * wire::kResourceUnit;
  return resources;
}

}  // namespace troupe::scheduler

#include "scheduler/node/resources_detect.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "scheduler/node/cuda_visible.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

constexpr std::uint64_t kSmallFileBytesMax = 1u << 20;  // of /proc and /sys
constexpr const char* kCgroupRoot = "/sys/fs/cgroup";

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && std::strchr(" \t\n", text.front())) text.remove_prefix(1);
  while (!text.empty() && std::strchr(" \t\n", text.back())) text.remove_suffix(1);
  return text;
}

// The leading number of a text; nothing for "max", "-1" and the like.
std::optional<std::int64_t> number(std::string_view text) {
  text = trimmed(text);
  std::int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || value < 0) return std::nullopt;
  return value;
}

std::optional<std::string> read(FileSystem& files, const std::string& path) {
  auto text = files.read(path, kSmallFileBytesMax);
  if (!text.ok()) return std::nullopt;
  return std::move(*text);
}

// The directories of a controller that limit this process, its own first. /proc/self/cgroup has
// "N:controllers:path" for v1 and "0::path" for v2; inside a container the path may be one that
// only the host sees, so the root is always looked at too.
std::vector<std::string> cgroup_directories(FileSystem& files, std::string_view controller) {
  std::vector<std::string> result;
  std::set<std::string> seen;
  const auto add = [&](const std::string& base, std::string path) {
    while (true) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      if (seen.insert(base + path).second) result.push_back(base + path);
      if (path.empty()) return;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  };
  const std::string v1 = std::string(kCgroupRoot) + "/" + std::string(controller);
  const std::string text = read(files, "/proc/self/cgroup").value_or("");
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t line_end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, line_end - at);
    at = line_end + 1;
    const auto first = line.find(':');
    const auto second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers =
        "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    const std::string path(line.substr(second + 1));
    if (controllers == ",,") {
      add(kCgroupRoot, path);
    } else if (controllers.find("," + std::string(controller) + ",") != std::string::npos) {
      add(v1, path);
    }
  }
  add(kCgroupRoot, "");
  add(v1, "");
  return result;
}

// A number of a file whose lines are "name number" (memory.stat, meminfo's with colons).
std::optional<std::int64_t> number_of_line(std::string_view text, std::string_view name) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t line_end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, line_end - at);
    at = line_end + 1;
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ' ')
      return number(line.substr(name.size()));
  }
  return std::nullopt;
}

// What a control group's memory limit leaves. Cached files go when memory is needed.
std::optional<std::int64_t> left_of_group(FileSystem& files, const std::string& directory) {
  struct Names {
    const char *limit, *usage, *cache;
  };
  for (const Names& names :
       {Names{"/memory.max", "/memory.current", "inactive_file"},
        Names{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"}}) {
    const auto limit_text = read(files, directory + names.limit);
    const auto limit = limit_text ? number(*limit_text) : std::nullopt;
    if (!limit || *limit <= 0) continue;
    const auto usage_text = read(files, directory + names.usage);
    const std::int64_t usage = (usage_text ? number(*usage_text) : std::nullopt).value_or(0);
    const auto statistics = read(files, directory + "/memory.stat");
    const std::int64_t cache =
        statistics ? number_of_line(*statistics, names.cache).value_or(0) : 0;
    return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, usage - cache));
  }
  return std::nullopt;
}

// CPUs of a quota, rounded up.
std::optional<std::int64_t> quota_cpus(std::optional<std::int64_t> quota,
                                       std::optional<std::int64_t> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return (*quota - 1) / *period + 1;
}

}  // namespace

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
  std::int64_t count = std::max(machine.affinity_cpu_count(), 1);
  for (const std::string& directory : cgroup_directories(files, "cpu")) {
    std::optional<std::int64_t> cpus;
    if (const auto max = read(files, directory + "/cpu.max")) {
      const auto space = max->find(' ');
      if (space != std::string::npos) {
        cpus = quota_cpus(number(*max), number(std::string_view(*max).substr(space)));
      }
    } else if (const auto quota = read(files, directory + "/cpu.cfs_quota_us")) {
      const auto period = read(files, directory + "/cpu.cfs_period_us");
      if (period) cpus = quota_cpus(number(*quota), number(*period));
    }
    if (cpus) count = std::min(count, std::max<std::int64_t>(*cpus, 1));
  }
  return static_cast<int>(count);
}

Result<std::int64_t> detect_memory_bytes(FileSystem& files) {
  constexpr std::string_view kMemTotal = "MemTotal:";
  const std::string text = TROUPE_TRY(files.read("/proc/meminfo", kSmallFileBytesMax));
  const auto at = text.find(kMemTotal);
  const auto kilobytes = at == std::string::npos
                             ? std::nullopt
                             : number(std::string_view(text).substr(at + kMemTotal.size()));
  if (!kilobytes) return Status(Code::kDataLoss, "/proc/meminfo has no MemTotal");
  std::int64_t bytes = *kilobytes * 1024;
  for (const std::string& directory : cgroup_directories(files, "memory")) {
    for (const char* name : {"/memory.max", "/memory.limit_in_bytes"}) {
      const auto limit_text = read(files, directory + name);
      const auto limit = limit_text ? number(*limit_text) : std::nullopt;
      if (limit && *limit > 0) bytes = std::min(bytes, *limit);
    }
  }
  return bytes;
}

Result<AvailableMemory> detect_available_memory(FileSystem& files) {
  AvailableMemory memory;
  memory.total_bytes = TROUPE_TRY(detect_memory_bytes(files));
  const std::string text = TROUPE_TRY(files.read("/proc/meminfo", kSmallFileBytesMax));
  const auto kilobytes = number_of_line(text, "MemAvailable:");
  if (!kilobytes) return Status(Code::kDataLoss, "/proc/meminfo has no MemAvailable");
  memory.available_bytes = *kilobytes * 1024;
  for (const std::string& directory : cgroup_directories(files, "memory")) {
    const auto left = left_of_group(files, directory);
    if (!left || *left >= memory.available_bytes) continue;
    memory.available_bytes = *left;
    memory.group_limited = true;
  }
  return memory;
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
    if (const auto minor = number(name)) minors.push_back(static_cast<std::int32_t>(*minor));
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

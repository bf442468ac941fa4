#include "scheduler/node/resources_detect.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string>

#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

constexpr std::uint64_t kSmallFile = 1 << 20;
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

std::optional<std::int64_t> number(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> number_in(FileSystem& files, const std::string& path) {
  const auto text = files.read(path, kSmallFile);
  return text.ok() ? number(*text) : std::nullopt;
}

// The folder of this process's cgroup for a v1 controller, or of v2 ("" for `controller`).
std::string cgroup_path(FileSystem& files, std::string_view controller) {
  const auto text = files.read("/proc/self/cgroup", kSmallFile);
  if (!text.ok()) return {};
  std::string_view left = *text;
  while (!left.empty()) {
    const auto line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const auto names = "," + std::string(line.substr(first + 1, second - first - 1)) + ",";
    const bool match = controller.empty()
                           ? names == ",,"
                           : names.find("," + std::string(controller) + ",") != std::string::npos;
    if (match) return std::string(line.substr(second + 1));
  }
  return {};
}

// Quota in CPUs, rounded up.
std::int64_t cpu_quota(FileSystem& files) {
  for (const std::string& group : {cgroup_path(files, ""), std::string()}) {
    const auto text = files.read("/sys/fs/cgroup" + group + "/cpu.max", kSmallFile);
    if (!text.ok() || text->starts_with("max")) continue;
    const auto quota = number(*text);
    const auto space = text->find(' ');
    const auto period =
        space == std::string::npos ? std::nullopt : number(std::string_view(*text).substr(space));
    if (quota && period && *quota > 0 && *period > 0) return (*quota + *period - 1) / *period;
  }
  for (const std::string& group : {cgroup_path(files, "cpu"), std::string()}) {
    const std::string folder = "/sys/fs/cgroup/cpu" + group;
    const auto quota = number_in(files, folder + "/cpu.cfs_quota_us");
    const auto period = number_in(files, folder + "/cpu.cfs_period_us");
    if (quota && period && *quota > 0 && *period > 0) return (*quota + *period - 1) / *period;
  }
  return kNoLimit;
}

}  // namespace

std::int64_t usable_cpus(FileSystem& files, std::int64_t affinity) {
  return std::max<std::int64_t>(1, std::min(affinity, cpu_quota(files)));
}

std::int64_t usable_memory_bytes(FileSystem& files) {
  std::int64_t bytes = kNoLimit;
  if (const auto text = files.read("/proc/meminfo", kSmallFile); text.ok()) {
    const auto at = text->find("MemTotal:");
    if (at != std::string::npos) {
      if (const auto kib = number(std::string_view(*text).substr(at + 9))) bytes = *kib * 1024;
    }
  }
  const std::string v2 = cgroup_path(files, "");
  const std::string v1 = cgroup_path(files, "memory");
  for (const std::string& path :
       {"/sys/fs/cgroup" + v2 + "/memory.max", std::string("/sys/fs/cgroup/memory.max"),
        "/sys/fs/cgroup/memory" + v1 + "/memory.limit_in_bytes",
        std::string("/sys/fs/cgroup/memory/memory.limit_in_bytes")}) {
    if (const auto limit = number_in(files, path); limit && *limit > 0) {
      bytes = std::min(bytes, *limit);
    }
  }
  return bytes == kNoLimit ? 0 : bytes;
}

std::int64_t usable_gpus(FileSystem& files, const Environment& environment) {
  std::int64_t devices = 0;
  while (files.exists("/dev/nvidia" + std::to_string(devices))) ++devices;
  const auto visible = environment.get("CUDA_VISIBLE_DEVICES");
  if (!visible) return devices;
  // As CUDA reads it: names up to the first that is none; "" and "-1" hide all.
  if (visible->empty() || visible->starts_with("-")) return 0;
  const auto named = 1 + std::count(visible->begin(), visible->end(), ',');
  return std::min<std::int64_t>(devices, named);
}

Result<wire::Resources> detect_resources(FileSystem& files, const Environment& environment) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const std::int64_t affinity =
      ::sched_getaffinity(0, sizeof mask, &mask) == 0 ? CPU_COUNT(&mask) : 1;
  wire::Resources resources;
  resources[std::string(kCpu)] = usable_cpus(files, affinity) * wire::kResourceUnit;
  const std::int64_t memory = usable_memory_bytes(files);
  if (memory > 0 && memory < kNoLimit / wire::kResourceUnit) {
    resources[std::string(kMemory)] = memory * wire::kResourceUnit;
  }
  if (const std::int64_t gpus = usable_gpus(files, environment); gpus > 0) {
    resources[std::string(kGpu)] = gpus * wire::kResourceUnit;
  }
  return resources;
}

}  // namespace troupe::scheduler

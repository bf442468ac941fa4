#include "runtime/base/machine.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troupe {
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

int granted_cpu_count(FileSystem& files, int at_most) {
  std::int64_t count = std::max(at_most, 1);
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

}  // namespace troupe

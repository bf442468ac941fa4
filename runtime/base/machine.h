#pragma once
// What of the machine this process may use, where a container grants less than there is.

#include <cstdint>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"

namespace troupe {

// `at_most` (of an affinity mask), or the CPU quota of the control group (v2: cpu.max, v1:
// cpu.cfs_quota_us) or of one above it, where that is less; rounded up, at least 1.
int granted_cpu_count(FileSystem& files, int at_most);
// The least memory limit (v2: memory.max, v1: memory.limit_in_bytes) or MemTotal, in bytes;
// kDataLoss when /proc/meminfo does not say.
Result<std::int64_t> detect_memory_bytes(FileSystem& files);
// What processes can have now without swapping or being killed.
struct AvailableMemory {
  std::int64_t available_bytes = 0;
  std::int64_t total_bytes = 0;  // as detect_memory_bytes
  bool group_limited = false;    // a control group's limit is nearer than the machine's memory
};
// MemAvailable, or what the nearest limit of a control group leaves: the limit less what the group
// uses, its file cache apart, where that is less. kDataLoss when /proc/meminfo does not say.
Result<AvailableMemory> detect_available_memory(FileSystem& files);

}  // namespace troupe

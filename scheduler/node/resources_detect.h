#pragma once
// What this machine has to offer: CPUs, memory, GPUs, as far as this process may use them.

#include <cstdint>

#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "runtime/wire/types.h"

namespace troupe::scheduler {

// CPU: the affinity mask, no more than the cgroup's quota (v1 and v2) rounded up, at least 1.
// memory: the cgroup's limit or the machine's memory, whichever is less, in bytes.
// GPU: the devices /dev/nvidia0, 1, …, no more than CUDA_VISIBLE_DEVICES names; 0 is left out.
Result<wire::Resources> detect_resources(FileSystem& files, const Environment& environment);

// The parts, for tests: `affinity` is the number of CPUs in the mask.
std::int64_t usable_cpus(FileSystem& files, std::int64_t affinity);
std::int64_t usable_memory_bytes(FileSystem& files);
std::int64_t usable_gpus(FileSystem& files, const Environment& environment);

}  // namespace troupe::scheduler

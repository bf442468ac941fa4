#pragma once
// What a machine has to offer: the CPUs and the memory this process may use, not those of the
// machine when a container grants less, and GPUs where there are any.

#include <memory>
#include <optional>
#include <string>

#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "runtime/wire/types.h"
#include "scheduler/node/gpu_devices.h"
#include "scheduler/node/nvml.h"

namespace troupe::scheduler {

// What only system calls and drivers tell.
class Machine {
 public:
  virtual ~Machine() = default;
  // CPUs in this process's affinity mask.
  virtual int affinity_cpu_count() const = 0;
  // NVIDIA's management library, as Nvml::open().
  virtual Result<std::shared_ptr<Nvml>> nvml() const = 0;
};
class SystemMachine final : public Machine {
 public:
  int affinity_cpu_count() const override;
  Result<std::shared_ptr<Nvml>> nvml() const override;
};

// The affinity mask, or the CPU quota of the control group (v2: cpu.max, v1: cpu.cfs_quota_us) or
// of one above it, where that is less; rounded up, at least 1.
int detect_cpu_count(FileSystem& files, const Machine& machine);
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

struct DetectedGpus {
  NodeGpus gpus;
  std::shared_ptr<Nvml> nvml;         // null: nobody can read them
  std::vector<std::string> problems;  // for people, a sentence each
};
// Those that NVML lists, or where that does not answer those that have a device file /dev/nvidiaN
// (under WSL they have none), of which only the number is known. CUDA_VISIBLE_DEVICES limits and
// orders them (cuda_visible.h).
DetectedGpus detect_gpus(FileSystem& files, const Environment& environment, const Machine& machine);

// "CPU", "memory", and "GPU" where there are any.
Result<wire::Resources> detect_resources(FileSystem& files, const Machine& machine,
                                         const NodeGpus& gpus);

}  // namespace troupe::scheduler

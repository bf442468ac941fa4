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

// The affinity mask, or what the control group grants (runtime/base/machine.h).
int detect_cpu_count(FileSystem& files, const Machine& machine);

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

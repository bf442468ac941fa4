#pragma once
// What the environment says about the launch, and the size of the run.

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/environment.h"
#include "runtime/base/status.h"
#include "train/config/train_config.h"

namespace troupe::train {

// The variables of LLaMA-Factory's launcher and torchrun that Troupe reads. Meaning and defaults:
// LLaMA-Factory's launcher.
struct LaunchEnvironment {
  bool use_ray = false;                        // USE_RAY
  bool force_torchrun = false;                 // FORCE_TORCHRUN
  std::optional<std::int64_t> nnodes;          // NNODES
  std::int64_t node_rank = 0;                  // NODE_RANK
  std::optional<std::int64_t> nproc_per_node;  // NPROC_PER_NODE
  std::optional<std::string> master_addr;      // MASTER_ADDR
  std::optional<std::int64_t> master_port;     // MASTER_PORT
  std::optional<std::string> rdzv_id;          // RDZV_ID
  std::optional<std::int64_t> min_nnodes;      // MIN_NNODES
  std::optional<std::int64_t> max_nnodes;      // MAX_NNODES
  std::optional<std::int64_t> max_restarts;    // MAX_RESTARTS: the restart budget of the run
  bool optim_torch = true;                     // OPTIM_TORCH: accepted, without effect
  std::optional<std::string> address;          // TROUPE_ADDRESS, HOST:PORT of a running head
  // What gave the number of trainers on a node.
  std::string processes_from = "NNODES × NPROC_PER_NODE";

  std::int64_t node_count() const { return nnodes.value_or(1); }
};

// Errors name the variable. An empty value counts as not set. Variables that ask for what is not
// there (USE_MCA, …) are kUnsupported. accelerate's variables: accelerate.h.
Result<LaunchEnvironment> read_launch_environment(const Environment& environment);

struct WorldSize {
  std::int64_t value = 1;
  std::string from;  // "troupe.workers", "NNODES × NPROC_PER_NODE", …
};

// troupe.workers, before ray_num_workers, before NNODES × NPROC_PER_NODE (where either is set; a
// missing NPROC_PER_NODE is the number of GPUs, at least 1), before the GPUs of this machine,
// else 1.
WorldSize resolve_world_size(const TrainConfig& config, const LaunchEnvironment& launch,
                             std::int64_t gpu_count);

// Threads of each trainer: troupe.threads_per_worker, else cores / local_workers, at least 1.
std::int64_t resolve_threads_per_worker(const TrainConfig& config, std::int64_t cores,
                                        std::int64_t local_workers);

// Address of the head to use: troupe.address, before TROUPE_ADDRESS.
std::optional<std::string> resolve_address(const TrainConfig& config,
                                           const LaunchEnvironment& launch);

}  // namespace troupe::train

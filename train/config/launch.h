#pragma once
// What the environment says about the launch, and the size of the run.

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/environment.h"
#include "train/config/problems.h"
#include "train/config/train_config.h"

namespace troupe::train {

// The launch as the environment has it: LLaMA-Factory's variables, or torchrun's own where those
// are silent. Meaning and defaults: LLaMA-Factory's launcher. The table of all variables, with
// those that have no effect or are refused, is launch_variables.h.
struct LaunchEnvironment {
  std::optional<std::int64_t> nnodes;  // NNODES, or MAX_NNODES
  // MIN_NNODES below MAX_NNODES, which `nnodes` is then: nodes may come and go.
  std::optional<std::int64_t> nodes_min;
  // What said so: "MIN_NNODES=1 and MAX_NNODES=4", "PET_NNODES=1:4".
  std::string nodes_from = "MIN_NNODES below MAX_NNODES";
  std::int64_t node_rank = 0;  // NODE_RANK
  bool node_rank_given = false;
  std::optional<std::string> rendezvous;       // RDZV_ID
  std::string rendezvous_from = "RDZV_ID";     // the variable that said so
  std::optional<std::int64_t> nproc_per_node;  // NPROC_PER_NODE
  std::optional<std::string> master_addr;      // MASTER_ADDR
  std::optional<std::int64_t> master_port;     // MASTER_PORT
  std::optional<std::int64_t> max_restarts;    // MAX_RESTARTS: the restart budget of the run
  std::optional<std::string> address;          // TROUPE_ADDRESS, HOST:PORT of a running head
  std::optional<std::int64_t> wait_timeout_s;  // AXOLOTL_NCCL_TIMEOUT
  // The devices of this machine that trainers may use, "0,1": CUDA_VISIBLE_DEVICES, or accelerate's
  // gpu_ids, whose key is named then: the process is yet to be told.
  std::optional<std::string> visible_gpus;
  std::string gpu_ids_key;
  // What gave the number of trainers on a node.
  std::string processes_from = "NNODES × NPROC_PER_NODE";

  bool elastic() const { return nodes_min.has_value(); }
  std::int64_t node_count() const { return nnodes.value_or(1); }
  // The same command is given on all nodes, as torchrun has it with --rdzv-id: the one at
  // MASTER_ADDR is node 0, the others are numbered in the order in which they come.
  bool numbered_on_arrival() const { return rendezvous && node_count() > 1 && !node_rank_given; }
};

// Problems name the variable. An empty value counts as not set. accelerate's variables:
// accelerate.h.
LaunchEnvironment read_launch_environment(const Environment& environment, Problems& problems);

// Checks the launch as a whole, when all that says something about it has been read.
void check_launch(const LaunchEnvironment& launch, const TrainConfig& config,
                  const Environment& environment, Problems& problems);

// Bounds of what a run is started with, from whatever source.
inline constexpr std::int64_t kTrainersMax = 1 << 16;
inline constexpr std::int64_t kThreadsPerTrainerMax = 4096;

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

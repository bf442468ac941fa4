#pragma once
// Whether a run trains on GPUs: from the configuration and what the nodes offer. Pure.

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/status.h"
#include "train/config/train_config.h"
#include "train/cuda/operators/block_graphs.h"

namespace troupe::train {

// What trainers could use.
struct DeviceOffer {
  std::int64_t nodes = 1;
  std::int64_t gpus = 0;  // whole ones that the nodes offer, all together
  // What the trainers' program says of them, where trainers run on this machine: kUnavailable says
  // what is missing (library, driver, device) and how to get it.
  Status usable;
};

// Trainers that share a GPU by troupe.gpus_per_worker.
int trainers_per_gpu(const TrainConfig& config);

struct DeviceDecision {
  bool on_gpus = false;
  std::string notice;  // a line for the user; empty: nothing to say
};

// What troupe.cuda_graphs asks for. Where operators are timed one by one there are none.
GraphOptions::Use graph_use(const TrainConfig& config);

// troupe.device=cuda: GPUs, or why not, with the way out: kUnavailable (there are none that can be
// used), kResourceExhausted (too few), kUnsupported (what goes with CPUs alone). auto: GPUs where
// nothing is against them, else the CPU and a notice that says why. On the CPU tf32: true,
// fp8: true and troupe.cuda_graphs: true are kInvalidArgument.
Result<DeviceDecision> decide_device(const TrainConfig& config, int trainers,
                                     const DeviceOffer& offer);

}  // namespace troupe::train

#pragma once
// Whether a run fits into a machine's memory, and what would: asked before anything is allocated.

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "train/sharding/memory_plan.h"

namespace troupe::train {

// What a machine has for a run.
struct NodeMemory {
  std::int64_t available_bytes = 0;  // that processes can get now without swapping
  std::int64_t total_bytes = 0;
  std::string limit;  // "the control group's memory.max" where that is what limits; else empty
  // Of each GPU, the smallest; 0: not known. For requests that are on_gpu.
  std::int64_t device_bytes = 0;
};

// What the run takes of one machine: its trainers, and the processes beside them.
std::int64_t node_bytes(const PlanRequest& request);

// A change of the configuration with which the run fits.
struct FittingChange {
  std::string settings;    // "troupe.strategy=zero3", as the user writes it
  std::string note;        // "the step keeps its size", or empty
  std::int64_t bytes = 0;  // of the memory that is short, with it: the machine's or a GPU's
};
// The changes that suffice, each alone: other strategies, recomputation, smaller micro-batches,
// fewer trainers on the machine. Where none does, all of these together, where that is enough on
// one machine or on more of them. Empty: nothing known would fit.
std::vector<FittingChange> fitting_changes(const PlanRequest& request, const NodeMemory& memory);

// Ok, or kOutOfMemory: what is needed, what there is, what would fit.
Status check_fits(const PlanRequest& request, const NodeMemory& memory);

}  // namespace troupe::train

#pragma once
// What every implementation of Communicator must do, over a factory of ranks: one function, so that
// other implementations run the same checks.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/collective/communicator.h"

namespace troupe::collective::tests {

// Calls `body` once per rank, at the same time, each with its own communicator of one new group.
using RunRanks =
    std::function<void(int world_size, const std::function<void(Communicator&)>& body)>;

// All operations, types and sizes against values computed here; bits where the tree fixes them.
void check_conformance(const RunRanks& run_ranks, int world_size);

}  // namespace troupe::collective::tests

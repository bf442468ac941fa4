#pragma once
// What a command tells a training that other processes run: that a machine leaves it, or that it is
// to save and to end.

#include <optional>
#include <string>

#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/wire/types.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/command.h"

namespace troupe::tools {

// A machine's NODE_RANK, below `machines`; nothing: it is none of a run's.
std::optional<int> machine_of(const wire::NodeInfo& node, int machines);

// Tells the run of the head at `address`, as its driver would, to save and to end.
Status save_and_stop_run(CommandContext& context, const std::string& address);

enum class Leaving {
  kGone,    // it was one of the training's machines; the others go on without it
  kNoPart,  // no training runs in the cluster, or it runs on nodes that did not join for it
  kNeeded,  // the training cannot do with fewer machines (MIN_NNODES)
  kFixed,   // trainers are there, and the training's machines may not change
};

// Tells the training of a cluster that node `self` goes, and waits until the step under way has
// ended and the others go on without it.
Result<Leaving> leave_run(CommandContext& context, const ClusterOptions& cluster,
                          const NodeId& self, const std::string& tool);

}  // namespace troupe::tools

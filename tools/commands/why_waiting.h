#pragma once
// The part of `troupe why` that asks a running cluster: what an actor or a placement group waits
// for, or why it ended.

#include <string>

#include "tools/commands/cluster_options.h"

namespace troupe::tools {

// `target`: a name, an id, or the first digits of one. False: the cluster has no such actor or
// group. Errors as connect_cluster's.
Result<bool> tell_waiting(CommandContext& context, const ClusterOptions& options,
                          const std::string& target);

}  // namespace troupe::tools

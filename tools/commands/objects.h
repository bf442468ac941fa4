#pragma once

#include <vector>

#include "runtime/wire/object_messages.h"
#include "tools/commands/cluster_options.h"
#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe objects`: what is in each node's object store.
void add_objects_command(CLI::App& app, CommandContext& context);

// What the store of each of these nodes says, in their order: they are asked themselves, since the
// head knows nothing of objects. `moves`: with what it has moved lately.
std::vector<Result<wire::StoreTotals>> ask_stores(ClusterConnection& cluster,
                                                  const std::vector<wire::NodeInfo>& nodes,
                                                  bool moves);

}  // namespace troupe::tools

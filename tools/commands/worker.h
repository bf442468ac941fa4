#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe worker --address HOST:PORT`: this machine as a node of a cluster.
void add_worker_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

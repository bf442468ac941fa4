#pragma once

#include <string>
#include <vector>

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe worker --address HOST:PORT`: this machine as a node of a cluster.
void add_worker_command(CLI::App& app, CommandContext& context);

// The same with everything as detected but its labels (K=V): joins the head at HOST:PORT, waiting
// `timeout_s` for it, and stays until the cluster ends.
Status run_worker(CommandContext& context, const std::string& address, double timeout_s,
                  std::vector<std::string> labels);

}  // namespace troupe::tools

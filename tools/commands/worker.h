#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe worker --address HOST:PORT`: this machine as a node of a cluster.
void add_worker_command(CLI::App& app, CommandContext& context);

// The same with everything as detected: joins the head at HOST:PORT, waiting `timeout_s` for it,
// and stays until the cluster ends.
Status run_worker(CommandContext& context, const std::string& address, double timeout_s);

}  // namespace troupe::tools

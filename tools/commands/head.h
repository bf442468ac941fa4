#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe head`: the cluster's head on this machine, until Ctrl-C or `troupe stop`.
void add_head_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe status`: the cluster in a few lines.
void add_status_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe stop`: ends the whole cluster.
void add_stop_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

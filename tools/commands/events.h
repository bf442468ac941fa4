#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe events`: what happened in the cluster, oldest first.
void add_events_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe tasks`: tasks and their workers, by whose they are.
void add_tasks_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

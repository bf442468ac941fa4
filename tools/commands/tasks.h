#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe tasks`: the workers that run tasks, by whose tasks they are.
void add_tasks_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

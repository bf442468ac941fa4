#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe drain`: a node takes nothing new, and what may run elsewhere goes there.
void add_drain_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

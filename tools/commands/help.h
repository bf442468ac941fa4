#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe help [COMMAND]`.
void add_help_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

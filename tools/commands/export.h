#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe export CONFIG [key=value …]`
void add_export_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// "troupe 0.1.0"
std::string version_line();
// `troupe version [--json]`: version, wire protocol, compiler.
void add_version_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

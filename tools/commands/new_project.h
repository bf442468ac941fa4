#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe new NAME`: a project of its own, to begin with.
void add_new_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

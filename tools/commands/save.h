#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe save RUN DIR`: the finished model of a run whose own folder has no room for it.
void add_save_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

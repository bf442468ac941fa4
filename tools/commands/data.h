#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe data CONFIG [key=value …]`: what becomes of a training's data sets.
void add_data_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

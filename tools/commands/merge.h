#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe merge DIR OUT`: a checkpoint as a model that others load.
void add_merge_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe nodes`: every node, what it offers and what is in use.
void add_nodes_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

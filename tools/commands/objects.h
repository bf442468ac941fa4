#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe objects`: what is in each node's object store.
void add_objects_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

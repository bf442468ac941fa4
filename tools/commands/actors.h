#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe actors`: every actor, where it runs and what became of it.
void add_actors_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

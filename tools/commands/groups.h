#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe groups`: every placement group and where its bundles are; groups and pools of actors.
void add_groups_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

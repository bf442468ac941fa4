#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe pipelines`: pipelines, their stages, and where items are.
void add_pipelines_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

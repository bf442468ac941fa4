#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe download NAME`: a repository of a hub into the cache on this machine.
void add_download_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe generate --model DIR --prompt TEXT`
void add_generate_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

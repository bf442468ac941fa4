#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe chaos run` and `troupe chaos enumerate`.
void add_chaos_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

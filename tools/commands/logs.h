#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe logs`: the last output of an actor or a node's daemon.
void add_logs_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

void add_chat_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

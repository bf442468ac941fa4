#pragma once
// Every command of `troupe`, one file each.

#include <memory>
#include <string>
#include <vector>

#include "tools/commands/command.h"

namespace troupe::tools {

// Declares all commands and runs the one that `arguments` (without the program's name) ask for.
// Returns the process's exit code.
int troupe_main(CommandContext& context, std::vector<std::string> arguments);

}  // namespace troupe::tools

#pragma once
// Every command of `troupe`, one file each.

#include <optional>
#include <string>
#include <vector>

#include "tools/commands/command.h"

namespace troupe::tools {

// Declares all commands and reads the arguments, without running anything: nothing where they are
// good, else the process's exit code, with help or what is wrong printed.
std::optional<int> check_arguments(CommandContext& context, std::vector<std::string> arguments);

// Declares all commands and runs the one that `arguments` (without the program's name) ask for.
// Returns the process's exit code.
int troupe_main(CommandContext& context, std::vector<std::string> arguments);

}  // namespace troupe::tools

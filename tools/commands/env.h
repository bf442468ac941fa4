#pragma once

#include <string>

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe env [--json] [--config_file FILE]`: what a report of a fault needs. FILE: accelerate's,
// shown in place of its default one.
void add_env_command(CLI::App& app, CommandContext& context);

// The value of a variable as it may be shown to others: those whose name or form says that they are
// secrets are not.
std::string shown_variable(const std::string& name, const std::string& value);
// Whether a variable says something about how trainings run here.
bool tells_of_training(const std::string& name);

}  // namespace troupe::tools

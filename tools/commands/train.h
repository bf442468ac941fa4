#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe train CONFIG [key=value …]`: LLaMA-Factory's command and files.
void add_train_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

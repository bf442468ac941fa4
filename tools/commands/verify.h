#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe verify DIR`: what of its checkpoints is as it was written.
void add_verify_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

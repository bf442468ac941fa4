#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe why [RUN|OUTPUT_DIR]`: what happened to a training run, in words.
void add_why_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

#pragma once

#include "tools/commands/command.h"
#include "train/sharding/memory_fit.h"

namespace troupe::tools {

// `troupe plan CONFIG [key=value …]`: what a run will need, before it is started.
void add_plan_command(CLI::App& app, CommandContext& context);

// This machine's memory, or what the control group leaves of it, as the trainer's checks want it.
Result<train::NodeMemory> memory_here(FileSystem& files);

}  // namespace troupe::tools

#pragma once

#include "tools/commands/command.h"

namespace troupe::tools {

// `troupe slurm CONFIG [key=value …]`: a job script that trains under SLURM, written or submitted.
void add_slurm_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

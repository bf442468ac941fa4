#pragma once
// `troupe jobs`: what runs on the cluster, and what has run.

#include "tools/commands/command.h"

namespace troupe::tools {

void add_jobs_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

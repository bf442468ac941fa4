#pragma once
// `troupe submit`: a program that runs on the cluster, as the driver of a job.

#include "tools/commands/command.h"

namespace troupe::tools {

void add_submit_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

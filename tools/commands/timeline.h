#pragma once
// `troupe timeline`: a cluster's or a run's history as a trace for Perfetto.

#include "tools/commands/command.h"

namespace troupe::tools {

void add_timeline_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

#pragma once

#include <span>
#include <string>

#include "tools/commands/command.h"
#include "tools/launchers/invocation.h"

namespace troupe::tools {

// `troupe run`: a program in ranks, or another launcher's command line.
void add_run_command(CLI::App& app, CommandContext& context);

// What the words behind `troupe run` (without a leading "--") mean.
Result<Invocation> read_run_words(std::span<const std::string> words, const LauncherContext& world);

// This program under another launcher's name (a link called torchrun): what that would have done.
// The exit code.
int run_as_launcher(CommandContext& context, const std::string& name,
                    std::span<const std::string> arguments);

}  // namespace troupe::tools

#pragma once
// The launchers whose command lines are understood, one function each; invocation.h says what they
// answer.

#include "tools/launchers/invocation.h"

namespace troupe::tools {

// torchrun, and python -m torch.distributed.run.
Result<Invocation> torchrun(std::span<const std::string> words, const LauncherContext& context);
// `troupe run` with flags: torchrun's, and --address. A script that ends in .py is Python's; any
// other program runs as it is.
Result<Invocation> troupe_run(std::span<const std::string> words, const LauncherContext& context);
// Its flags, for its help.
std::string troupe_run_flags();
// axolotl, and aitraining (autotrain).
Result<Invocation> axolotl(std::span<const std::string> words, const LauncherContext& context);
Result<Invocation> aitraining(std::span<const std::string> words, const LauncherContext& context);
// llamafactory-cli, and lmf.
Result<Invocation> llamafactory_cli(std::span<const std::string> words,
                                    const LauncherContext& context);
// accelerate, with its sub-commands.
Result<Invocation> accelerate(std::span<const std::string> words, const LauncherContext& context);
// accelerate-launch, and python -m accelerate.commands.launch.
Result<Invocation> accelerate_launch(std::span<const std::string> words,
                                     const LauncherContext& context);
// The questions of `accelerate config`, and the file that comes of them.
Result<Invocation> accelerate_config(std::span<const std::string> words,
                                     const LauncherContext& context);
// deepspeed, ds, and python -m deepspeed.launcher.runner.
Result<Invocation> deepspeed(std::span<const std::string> words, const LauncherContext& context);

}  // namespace troupe::tools

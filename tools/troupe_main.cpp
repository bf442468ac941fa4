// The program `troupe`: the commands of tools/commands, and the process of the trainer actors.

#include <unistd.h>

#include <iostream>

#include "actors/host.h"
#include "tools/commands/registry.h"
#include "train/trainer/controller.h"
#include "train/trainer/trainer_actor.h"

int main(int argc, char** argv) {
  // --- host mode --------------------------------------------------------------------------------
  // The process of an actor is this program again ("troupe host --actor TYPE …"): host_main stands
  // here, before anything else, with the list of actor classes that this program can host.
  if (const auto exit_code = troupe::host_main(
          argc, argv,
          troupe::actors<troupe::train::TrainController, troupe::train::TrainerActor>)) {
    return *exit_code;
  }

  // --- commands ---------------------------------------------------------------------------------
  std::ios::sync_with_stdio(false);
  troupe::PosixFileSystem files;
  const troupe::SystemEnvironment environment;
  troupe::SystemRandom random;
  troupe::tools::CommandContext context{.files = files,
                                        .environment = environment,
                                        .random = random,
                                        .in = std::cin,
                                        .out = std::cout,
                                        .err = std::cerr,
                                        .out_is_terminal = ::isatty(STDOUT_FILENO) == 1,
                                        .err_is_terminal = ::isatty(STDERR_FILENO) == 1};
  return troupe::tools::troupe_main(context, {argv + 1, argv + argc});
}

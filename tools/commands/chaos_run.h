#pragma once
// `troupe chaos run`: a training under the faults of a scenario, and what became of it.

#include <string>
#include <vector>

#include "tools/commands/command.h"

namespace troupe::tools {

struct ChaosRunFlags {
  std::string scenario;                      // a path
  std::vector<std::string> train_arguments;  // configuration, overrides
  std::string more_faults;                   // as --chaos
  bool oracle = false;
  bool json = false;
};

// Ends with a failure where the training fails, or its result is not the oracle's.
Status chaos_run(const ChaosRunFlags& flags, CommandContext& context);

}  // namespace troupe::tools

#pragma once
// `troupe chaos enumerate`: a tiny training is killed once at every point that it reaches, and must
// end with the bits of the undisturbed one every time.

#include <optional>
#include <string>
#include <vector>

#include "tools/commands/command.h"

namespace troupe::tools {

struct EnumerateFlags {
  std::vector<std::string> strategies;  // empty: all
  std::uint64_t jobs = 2;               // trainings at a time
  std::uint64_t points_max = 60;        // of a strategy and rank; stages always; 0: all
  bool operators = false;
  std::string only;   // of the faults, those whose text contains this
  bool keep = false;  // the folder, for a look at what failed
  bool json = false;
};

Status chaos_enumerate(const EnumerateFlags& flags, CommandContext& context);

}  // namespace troupe::tools

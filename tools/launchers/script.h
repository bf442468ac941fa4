#pragma once
// The script that a launcher is to start: a training that this program carries out itself, or a
// program of the user's.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/launchers/invocation.h"

namespace troupe::tools {

// A script or module as launchers get it.
struct Script {
  std::string name;  // a path, or a module's name
  bool module = false;
  bool no_python = false;  // a program of its own, no script of Python's
  std::vector<std::string> arguments;
};

// A training that Troupe carries out itself.
struct OwnTraining {
  std::vector<std::string> arguments;  // behind `troupe train`
  std::vector<std::string> notices;
};

// kInvalidArgument where a literal "...", copied from a text, is among a training's arguments.
Status check_placeholders(std::span<const std::string> arguments);

// A training where the script is LLaMA-Factory's or Axolotl's: by its module, by what it imports,
// or, where it is not there, by its arguments. Nothing: a program of the user's, whose arguments
// may be anything. kNotFound: it is not there, and its arguments are no training's. Otherwise as
// check_placeholders().
Result<std::optional<OwnTraining>> own_training(const Script& script,
                                                const LauncherContext& context);

// The rank's command line: with Python's interpreter and -u, unless it is a program. PYTHON_EXEC,
// else that of the active virtual environment, else python3 of PATH.
std::vector<std::string> program_of(const Script& script, const LauncherContext& context);

}  // namespace troupe::tools

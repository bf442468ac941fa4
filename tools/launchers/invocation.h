#pragma once
// Other launchers' command lines: what `torchrun …`, `llamafactory-cli …` and their like mean here.
// Nothing is started: the answer is a value that tools/commands carries out.

#include <functional>
#include <iosfwd>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "tools/ranks/run_options.h"

namespace troupe::tools {

// A command of `troupe`, with variables that its launcher would have set.
struct TroupeCommand {
  std::vector<std::string> words;  // {"train", "x.yaml", …}
  std::map<std::string, std::string> environment;
};

// A program of the user's, in ranks.
struct RankCommand {
  RunOptions options;
  std::optional<std::string> address;  // of a running cluster
};

// A text to be printed, and the exit code.
struct Answer {
  std::string text;
  int exit_code = 0;
};

// Questions at the terminal, and what comes of the answers. Input that ends is the default answer
// to all that is left.
struct Dialogue {
  std::function<Status(std::istream& in, std::ostream& out)> hold;
};

struct Invocation {
  std::variant<TroupeCommand, RankCommand, Answer, Dialogue> what;
  std::vector<std::string> notices;  // what is done otherwise than there, a line each
};

// The world that a command line is read in. Relative paths are relative to the working directory.
struct LauncherContext {
  const Environment& environment;
  FileSystem& files;
  // The GPUs of this machine that the environment shows; looking for them takes a moment.
  std::function<int()> gpus_here = [] { return 0; };
};

// `words`: those behind the name.
using Interpreter = Result<Invocation> (*)(std::span<const std::string> words,
                                           const LauncherContext& context);

// The names that this program answers to besides its own: "torchrun", "llamafactory-cli", …
std::vector<std::string> launcher_names();
// Nothing where `name`, a path or a plain name, is none of them.
Interpreter find_launcher(std::string_view name);

// A whole command line: a launcher's, python's with a launcher's module or script, or any other
// program, which becomes one rank. kInvalidArgument and kUnsupported name the flag and the way out.
Result<Invocation> interpret(std::span<const std::string> words, const LauncherContext& context);

// The exit code of a command line that could not be read: 2, as argparse has it, or 1.
int exit_code_of(const Status& refused);

}  // namespace troupe::tools

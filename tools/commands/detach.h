#pragma once
// A run that goes on when the terminal is gone: `troupe train --detach` starts itself again in a
// session of its own, without a terminal, and stays until that run has started or failed.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "tools/commands/command.h"

namespace troupe::tools {

// What a detached run tells the command that started it. Each is told once; a command that has
// gone meanwhile is no failure.
class StartReport {
 public:
  // Takes the hidden argument away by which a detached run is told that it is one. Nothing where it
  // is not there.
  static std::optional<StartReport> take(std::vector<std::string>& arguments);

  // `run`: its id; empty for a node that only takes part in one.
  void started(const std::string& run);
  void failed(const Status& status, int exit_code);

 private:
  explicit StartReport(UniqueFd pipe) : pipe_(std::move(pipe)) {}
  void write(const std::string& line);
  UniqueFd pipe_;
};

struct DetachedRun {
  std::string run;  // empty as above
  pid_t pid = 0;
};

// Runs this program with `arguments` in a new session: standard input empty, output appended to
// `log`. Until it has told that it started, what it writes is shown on context.err, Ctrl-C and
// SIGTERM are passed on to it, and a terminal that goes leaves it alone. A failure is the run's
// own, with its exit code in the context; where it ended without a word, says how.
Result<DetachedRun> run_detached(CommandContext& context, std::vector<std::string> arguments,
                                 const std::string& log);

}  // namespace troupe::tools

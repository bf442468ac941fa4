#pragma once
// A run that goes on when the terminal is gone: `troupe train --detach` starts itself again in a
// session of its own, without a terminal, and stays until that run has started or failed.

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "tools/commands/command.h"
#include "troupe/unique_fd.h"

namespace troupe::tools {

// How a detached run tells the command that started it that it has started. A command that has gone
// meanwhile is no failure; a run that fails needs no words: it ends.
class StartReport {
 public:
  // Takes the hidden argument away by which a detached run is told that it is one. Nothing where it
  // is not there.
  static std::optional<StartReport> take(std::vector<std::string>& arguments);

  // `run`: its id; empty for a node that only takes part in one. Once.
  void started(const std::string& run);

 private:
  explicit StartReport(UniqueFd pipe) : pipe_(std::move(pipe)) {}
  UniqueFd pipe_;
};

struct DetachedRun {
  std::string run;  // empty as above
  pid_t pid = 0;
};

// Runs this program with `arguments` in a new session: standard input empty, output appended to
// `log`. Until it has told that it started, what it writes is shown on context.err, Ctrl-C and
// SIGTERM are passed on to it, and a terminal that goes leaves it alone. Nothing where the run
// ended instead: it has said why, and its exit code is the context's. kInternal where a signal
// ended it.
Result<std::optional<DetachedRun>> run_detached(CommandContext& context,
                                                std::vector<std::string> arguments,
                                                const std::string& log);

}  // namespace troupe::tools

#pragma once
// --watch: the process that the user started runs the daemon as a child, and starts it again when
// it dies of a signal. What the daemon looked after goes on meanwhile (runtime/process/keeper.h,
// the head's journal).

#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "tools/commands/command.h"

namespace troupe::tools {

struct WatchOptions {
  std::string what;  // for messages: "worker"
  // Arguments for every daemon, besides those of this process without --watch: what makes the next
  // one take the place of the one before.
  std::vector<std::string> more;
  bool token_from_stdin = false;  // read once, given to each
};

// Until the daemon ends by itself: its exit code becomes this process's. SIGINT, SIGTERM and SIGHUP
// are passed on; a daemon whose watcher is killed is told to end. kAborted when it dies too often
// (20 times in 60 s).
Status watch_daemon(CommandContext& context, const WatchOptions& options);

}  // namespace troupe::tools

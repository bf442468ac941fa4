#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "scheduler/node/log_pipes.h"
#include "tools/commands/command.h"

namespace troupe::tools {

// In the line that a worker writes when its head has taken it.
inline constexpr const char* kJoinedWords = "joined the cluster of";

// `troupe worker --address HOST:PORT`: this machine as a node of a cluster.
void add_worker_command(CLI::App& app, CommandContext& context);

// This machine as a node of a run that another one leads.
struct JoinOptions {
  std::string address;                  // of its head, HOST:PORT
  double join_timeout_s = 60;           // until it is there
  double orphan_timeout_s = 600;        // how long it may be away
  std::vector<std::string> labels;      // K=V each
  scheduler::OutputListener on_output;  // of what runs here; empty: the head's machine shows it
  // SIGUSR1 and SIGUSR2 are passed on to the programs that run here, and SIGTERM leaves them so
  // long before SIGKILL.
  Duration stop_grace = std::chrono::seconds(2);
  // SIGTERM comes to the head, too, which says what becomes of the run: here it means nothing.
  bool head_gets_signals = false;
  bool passes_signals_on = true;  // SIGUSR1 and SIGUSR2
  // What the first SIGTERM does instead of leaving, on a thread of its own; it is given this node's
  // id. True: the run does without this machine, which leaves now. False: it stays until the run
  // ends by it, or a second signal. A failure: it leaves. Empty: it leaves.
  std::function<Result<bool>(const NodeId&)> on_terminate;
  // Asked once this machine has joined, on a thread of its own. A failure: it is none of the run's
  // machines, and leaves with that. Empty: it may stay.
  std::function<Status()> on_joined;
};

// What the machine that leads a run tells the others as it ends their cluster, and the exit code
// that they make of it. Nothing: the run was stopped otherwise.
std::string run_end_text(int exit_code);
std::optional<int> exit_code_of_run(std::string_view reason);

// What `troupe drain` tells a node that joined for a run, which ends by it: who drained it.
std::string drained_text(std::string_view by);
std::optional<std::string> drained_by(std::string_view reason);

// The signal by which this machine left by itself, as run_worker() tells it.
std::optional<int> signal_that_ended(std::string_view reason);

// With everything else as detected. Stays until the cluster ends; what it was stopped for.
Result<std::string> run_worker(CommandContext& context, const JoinOptions& join);

}  // namespace troupe::tools

#pragma once
// Signals as calls, while some work runs.

#include <signal.h>

#include <functional>
#include <initializer_list>

#include "runtime/base/status.h"
#include "tools/commands/command.h"

namespace troupe::tools {

// Runs `work` in the calling thread. One of the signals that comes meanwhile calls `on_signal`, on
// a thread of its own; the command then ends with 128 + signal. A repetition of one that asks to
// end (repeated_signals.h) is dropped. Programs that `work` starts have no signal blocked.
Status with_signals(const std::function<void(int signal)>& on_signal,
                    const std::function<Status()>& work, CommandContext& context,
                    std::initializer_list<int> signals = {SIGINT, SIGTERM});

}  // namespace troupe::tools

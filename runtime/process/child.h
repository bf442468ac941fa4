#pragma once
// The end of processes: noticed at once through pidfds, and made sure of for whole process groups.

#include <sys/types.h>

#include <functional>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/net/event_loop.h"
#include "runtime/process/spawn.h"
#include "runtime/wire/types.h"

namespace troupe::process {

// Reported where the kernel no longer knows how the child ended (another part of the program waited
// for it, or ignores SIGCHLD).
inline constexpr wire::ExitStatus kUnknownExit{.exit_code = -1, .signal = 0};

// Calls `done` once on the loop's thread when the process has ended; it is reaped then. The child
// must live until then, or until stop_watching. Loop thread.
void watch_exit(net::EventLoop& loop, const Child& child,
                std::function<void(wire::ExitStatus)> done);
void stop_watching(net::EventLoop& loop, const Child& child);

// The same, waiting: kDeadlineExceeded when it is still running then.
Result<wire::ExitStatus> wait(const Child& child, Deadline deadline);

// Sends a signal to every process of the group. kNotFound when there is none any more.
Status kill_group(pid_t group, int signal);
// No process of the group runs: those that ended and wait to be reaped by others do not count.
bool group_is_empty(pid_t group);
// The processes whose parent is `parent`, those that wait to be reaped too.
std::vector<pid_t> children_of(pid_t parent);
// Kills the group until it is empty, then calls `done` on the loop's thread: ok, or
// kDeadlineExceeded with what still runs (a process that hangs in the kernel). Loop thread.
void kill_group_until_empty(net::EventLoop& loop, pid_t group, Deadline deadline,
                            std::function<void(Status)> done);

}  // namespace troupe::process

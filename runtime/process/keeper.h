#pragma once
// The keeper of a node: a small process that is the parent of the actors' processes and holds what
// must outlive the node's daemon. It decides nothing: it starts, reaps, holds, hands out, drops.
//
// The daemon may be killed: its processes run on, and the next daemon that connects gets
// everything. A daemon that stays away, or says nothing, for the hold time is replaced by nobody:
// then the keeper kills all its children, and theirs, and ends. When the keeper is killed its
// children are killed by the kernel.
//
// One thread, one poll loop, one client at a time, of the same user. Protocol:
// runtime/wire/keeper_messages.h.

#include <optional>

#include "runtime/base/clock.h"
#include "troupe/unique_fd.h"

namespace troupe::process {

// Serves the socket that listens; returns the exit code when it is to end.
int run_keeper(UniqueFd listener, Duration hold);

// "PROGRAM keeper --socket-name NAME --hold-ms N", with the socket as descriptor 3: every program
// that hosts actors can be the keeper of its node. Nothing for other arguments.
bool is_keeper_command(int argc, char** argv);
std::optional<int> keeper_main(int argc, char** argv);

}  // namespace troupe::process

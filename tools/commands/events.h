#pragma once
// `troupe events`: what happened in the cluster.

#include <cstdint>
#include <vector>

#include "runtime/base/clock.h"
#include "scheduler/client/head_client.h"
#include "tools/commands/command.h"

namespace troupe::tools {

// All events after sequence number `after` that the head still has, in order.
Result<std::vector<wire::EventRecord>> read_events(scheduler::HeadClient& head, std::uint64_t after,
                                                   Deadline deadline);

void add_events_command(CLI::App& app, CommandContext& context);

}  // namespace troupe::tools

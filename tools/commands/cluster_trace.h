#pragma once
// What a head knows of its nodes and actors, as trace events.

#include <cstdint>
#include <vector>

#include "runtime/wire/types.h"
#include "tools/commands/trace_events.h"

namespace troupe::tools {

// `events` in order, without holes; the oldest may be missing. Every node is a process of the trace
// and every actor a thread of the nodes it ran on: its waiting for resources (on the head), its
// starts, each generation's life, the times between them. What is still going on ends at
// `now_unix_us`.
json::Value cluster_trace(const std::vector<wire::EventRecord>& events,
                          const std::vector<wire::NodeInfo>& nodes,
                          const std::vector<wire::ActorInfo>& actors, std::int64_t now_unix_us);

}  // namespace troupe::tools

#pragma once
// What a head knows of its nodes and actors, as trace events.

#include <cstdint>
#include <vector>

#include "runtime/wire/control_messages.h"
#include "runtime/wire/object_messages.h"
#include "runtime/wire/types.h"
#include "tools/commands/trace_events.h"

namespace troupe::tools {

// What a node's object store has moved.
struct MovesOfNode {
  NodeId node_id;
  std::vector<wire::StoreMove> moves;
};

// `events` in order, without holes; the oldest may be missing. Every node is a process of the trace
// and every actor a thread of the nodes it ran on: its waiting for resources (on the head), its
// starts, each generation's life, the times between them. What is still going on ends at
// `now_unix_us`. Beside that tasks stand with their workers, as those who submitted them say
// (`work`), and with the nodes the bytes of objects that came from other nodes, or went to disk and
// came back.
json::Value cluster_trace(const std::vector<wire::EventRecord>& events,
                          const std::vector<wire::NodeInfo>& nodes,
                          const std::vector<wire::ActorInfo>& actors, std::int64_t now_unix_us,
                          const std::vector<wire::ClientWork>& work = {},
                          const std::vector<MovesOfNode>& moves = {});

}  // namespace troupe::tools

#pragma once
// A question to a node itself, on its own port: what it keeps, never through the head.

#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/wire/control_messages.h"

namespace troupe::scheduler {

// Connects, asks (ReadLogs, ReadSegment), and waits for the one answer. Not on the loop's thread.
// kUnavailable, kUnauthenticated, kDeadlineExceeded; what the node says is in the answer's status.
Result<wire::ControlMessage> ask_node(net::EventLoop& loop, const net::Address& node,
                                      const net::Token& token, const wire::ControlMessage& question,
                                      Deadline deadline);

}  // namespace troupe::scheduler

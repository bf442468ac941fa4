#pragma once
// The run's bundle from process to process: on one node as a descriptor of the same memory, between
// nodes as bytes. The receiver acknowledges.

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/memory/segment.h"

namespace troupe::train {

// Waits for the acknowledgement. Does not close the socket.
Status send_bundle(int socket, bool same_node, const memory::Segment& bundle, Deadline deadline);
Result<memory::Segment> receive_bundle(int socket, bool same_node, Deadline deadline);

}  // namespace troupe::train

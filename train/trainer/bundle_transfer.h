#pragma once
// The run's bundle from process to process: on one node as a descriptor of the same memory, between
// nodes as bytes. The receiver acknowledges.

#include <chrono>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/memory/segment.h"

namespace troupe::train {

// How long a bundle may take, between nodes with a slow network too.
inline constexpr std::chrono::seconds kBundleTimeout{600};

// Waits for the acknowledgement. Does not close the socket.
Status send_bundle(ByteStream& stream, bool same_node, const memory::Segment& bundle,
                   Deadline deadline);
Result<memory::Segment> receive_bundle(ByteStream& stream, bool same_node, Deadline deadline);

}  // namespace troupe::train

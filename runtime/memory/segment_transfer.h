#pragma once
// A segment from process to process: on one node as a descriptor of the same memory, between nodes
// as bytes. The receiver acknowledges.

#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/memory/segment.h"
#include "troupe/byte_stream.h"

namespace troupe::memory {

// Waits for the acknowledgement. Does not close the stream. same_node: it is a Unix socket.
Status send_segment(ByteStream& stream, bool same_node, const Segment& segment, Deadline deadline);
// Read-only where it is the sender's memory. kProtocol where more than `bytes_max` are announced.
Result<Segment> receive_segment(ByteStream& stream, bool same_node, std::uint64_t bytes_max,
                                Deadline deadline);

}  // namespace troupe::memory

#pragma once
// A package on its way to a node, on the node's own port, never through the head.

#include <functional>
#include <span>

#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/wire/types.h"

namespace troupe::scheduler {

// Sends the package's file to the node, and returns when the node has it whole and has found its
// hash right. kAlreadyExists, at once: it has it already. Not on the loop's thread. kCancelled:
// `go_on`, asked before each piece, says no; nothing stays at the node then. kDeadlineExceeded: the
// node has not answered for `patience`; kResourceExhausted, kFailedPrecondition: it has no room, or
// keeps no packages.
Status send_package(net::EventLoop& loop, const net::Address& node, const net::Token& token,
                    const wire::Package& package, std::span<const std::byte> bytes,
                    Duration patience, const std::function<bool()>& go_on);

}  // namespace troupe::scheduler

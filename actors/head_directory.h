#pragma once
// The Directory of a real cluster: a client of the head (scheduler/client).

#include <memory>
#include <string>

#include "actors/directory.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/wire/host_messages.h"

namespace troupe::detail {

// An actor's own client of the head; it connects when it is first asked something, and an actor
// that asks nothing costs the head no connection.
std::shared_ptr<Directory> make_head_directory(net::EventLoop& loop, const wire::HostStart& start);

}  // namespace troupe::detail

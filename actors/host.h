#pragma once
// An actor's process behind host_main() (troupe/actor.h).

#include <functional>
#include <memory>
#include <vector>

#include "actors/directory.h"
#include "runtime/net/event_loop.h"
#include "runtime/wire/host_messages.h"
#include "troupe/actor.h"
#include "troupe/unique_fd.h"

namespace troupe::detail {

// Makes the host's connection to the head; called at most once, when the actor first needs it.
using DirectoryFactory =
    std::function<std::shared_ptr<Directory>(net::EventLoop&, const wire::HostStart&)>;

// For tests: called when a call's state has been saved and its answer has not left, on the thread
// that ran it.
using OnSaved = std::function<void(const wire::ActorSpec&, std::uint64_t generation)>;

// Hosts the actor that the node at the other end of `node_socket` asks for, until it is to end.
// Returns the process's exit code; ends the process at once when the node is gone.
int run_host(std::vector<ActorClass> classes, UniqueFd node_socket,
             const DirectoryFactory& make_directory, OnSaved on_saved = nullptr);

// kFailedPrecondition in a process that a node started to host an actor and whose program has not
// come to host_main: as a driver it would start itself again, without end.
Status check_may_drive();

}  // namespace troupe::detail

#pragma once
// The process of an actor: the user's own program, started again by a node in host mode.
//
//   int main(int argc, char** argv) {
//     if (auto exit_code = troupe::host_main(argc, argv, troupe::actors<Counter, Trainer>)) {
//       return *exit_code;
//     }
//     … the driver …
//   }
//
// One thread waits for sockets and timers; the main thread is the actor's own: it runs the
// constructor, the calls one after the other, and the continuations of the actor's futures.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "actors/actor_class.h"
#include "actors/context.h"
#include "actors/directory.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/event_loop.h"
#include "runtime/wire/host_messages.h"

namespace troupe {

namespace detail {

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

// Whether these arguments ask for a process of a node: "PROGRAM host --actor TYPE …", or its keeper
// (runtime/process/keeper.h).
bool is_host_command(int argc, char** argv);
// kFailedPrecondition in a process that a node started to host an actor and whose program has not
// come to host_main: as a driver it would start itself again, without end.
Status check_may_drive();
std::optional<int> host_main(int argc, char** argv, std::vector<ActorClass> classes);

}  // namespace detail

// The first thing in main(): nothing when this process is not to host an actor; otherwise hosts it
// and returns the exit code, with which main() ends.
template <typename... ActorTypes>
std::optional<int> host_main(int argc, char** argv, ActorList<ActorTypes...> list) {
  if (!detail::is_host_command(argc, argv)) return std::nullopt;
  return detail::host_main(argc, argv, detail::actor_classes(list));
}

}  // namespace troupe

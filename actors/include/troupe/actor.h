#pragma once
// Writing actor classes: an ordinary class that lists its methods, and the arguments of its
// constructor where it has any.
//
//   class Counter {
//    public:
//     explicit Counter(int start);
//     int add(int n);
//     static constexpr auto constructor = troupe::constructor<int>;
//     static constexpr auto methods = troupe::methods<&Counter::add>;
//   };
//
// The process of an actor is the program that lists its class here, started again by a node:
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

#include <optional>
#include <vector>

// Before the others: the compiler tells an error in a class with the way to this header.
#include "troupe/detail/method_table.h"

#include "troupe/context.h"
#include "troupe/detail/actor_class.h"

namespace troupe {

namespace detail {

// Whether these arguments ask for a process of a node: "PROGRAM host --actor TYPE …", or its
// keeper.
bool is_host_command(int argc, char** argv);
std::optional<int> host_main(int argc, char** argv, std::vector<ActorClass> classes);

}  // namespace detail

// The first thing in main(): nothing when this process is not to host an actor; otherwise hosts it
// and returns the exit code, with which main() ends.
template <typename... ActorTypes>
std::optional<int> host_main(int argc, char** argv, ActorList<ActorTypes...> list) {
  if constexpr ((detail::check_methods<ActorTypes>() && ...)) {
    if (!detail::is_host_command(argc, argv)) return std::nullopt;
    return detail::host_main(argc, argv, detail::actor_classes(list));
  } else {
    return std::nullopt;  // (which does not compile)
  }
}

}  // namespace troupe

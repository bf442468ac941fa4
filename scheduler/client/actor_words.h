#pragma once
// What an actor waits for, or why it ended, in words: one source for `troupe why`, for what a
// driver says of actors that wait, and for the errors of deadlines.

#include <string>
#include <string_view>

#include "runtime/wire/types.h"

namespace troupe::scheduler {

// By its name, else by its class and id: "reader", "Reader 3f2a".
std::string actor_label(const wire::ActorInfo& actor);

// Its parts stand behind semicolons: "needs CPU 1; vm has CPU 0 of 2 free". `node` is where it
// runs, or starts, as the one who asks calls it.
std::string actor_waits_for(const wire::ActorInfo& actor, std::string_view node);

}  // namespace troupe::scheduler

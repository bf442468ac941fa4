#pragma once
// Programs among the actors: a job's own, which nobody owns, and those that a client runs as parts
// of its work (the ranks of `troupe run`), which end with it as its actors do.

#include "runtime/wire/types.h"

namespace troupe::scheduler {

inline bool is_job_program(const wire::ActorSpec& spec) {
  return spec.is_program() && spec.owner.empty() && spec.owner_actor.empty();
}

// How the process of a client's program ended, as the context of the actor's death says it; nothing
// where it never ran, or nobody saw its end.
inline constexpr const char* kExitCodeContext = "exit_code";
inline constexpr const char* kExitSignalContext = "exit_signal";
// Where it never ran: why, without its name, which the message begins with.
inline constexpr const char* kNotStartedContext = "not_started";
// Where its node was lost with it: which node, and why.
inline constexpr const char* kNodeLostContext = "node_lost";

}  // namespace troupe::scheduler

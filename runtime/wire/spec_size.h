#pragma once
// How large the spec of an actor may be.

#include <cstddef>

#include "runtime/base/status.h"
#include "runtime/wire/types.h"

namespace troupe::wire {

// The bytes of everything in it that has no fixed size.
std::size_t variable_bytes(const ActorSpec& spec);

// kInvalidArgument above limits::kActorSpecBytesMax, or where the environment alone is above
// kProgramBytesMax: says what is large, and the way out. Asked where a spec is made, and by the
// head of whoever did not ask.
Status check_size(const ActorSpec& spec);

}  // namespace troupe::wire

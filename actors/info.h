#pragma once
// What a cluster says of its nodes, actors and groups: plain structs, to be read. Their fields and
// what these mean are documented in runtime/wire/types.h; they are the same that travel.

#include "runtime/wire/types.h"

namespace troupe {

using wire::ActorInfo;
using wire::ActorState;
using wire::NodeInfo;
using wire::NodeState;
using wire::PlacementGroupInfo;
using wire::SupervisorInfo;

}  // namespace troupe

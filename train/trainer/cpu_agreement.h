#pragma once
// Ranks on unequal processors agree on the instructions that all of them have, so that they round
// alike.

#include "runtime/base/status.h"
#include "runtime/collective/communicator.h"

namespace troupe::train {

// Collective, in every generation, before the process makes its first operators.
// kFailedPrecondition, naming both levels, where a process that computes already uses instructions
// that a new one does not have: the run must be started again.
Status agree_on_cpu(collective::Communicator& world);

}  // namespace troupe::train

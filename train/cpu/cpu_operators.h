#pragma once
// The operator table on the CPU.

#include <memory>

#include "train/cpu/cpu_options.h"
#include "train/tensor/operators.h"

namespace troupe::train {

class Arena;

// Runs on `arena`, which must outlive it and serve nothing else during a call. Scratch memory is
// kept and stops growing after the first step; it comes to a few MiB a thread.
std::unique_ptr<Operators> make_cpu_operators(Arena& arena, const CpuOptions& options = {});

}  // namespace troupe::train

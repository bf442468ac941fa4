#pragma once
// The names that train/trainer still uses for train/chaos/fault.h; they go with the loop's phases.

#include "train/chaos/fault.h"

namespace troupe::train {

enum class ChaosPhase { kBegin, kForward, kBackward, kCommunication, kOptimizer, kCheckpoint };
using ChaosFault = Fault;

inline bool strikes(const Fault& fault, std::int64_t step, std::int64_t rank, ChaosPhase phase,
                    std::int64_t generation) {
  constexpr Stage kStages[] = {Stage::kBegin,         Stage::kForward,   Stage::kBackward,
                               Stage::kCommunication, Stage::kOptimizer, Stage::kCheckpoint};
  return fault.kind == FaultKind::kKill && strikes_at_point(fault) && fault.step == step &&
         fault.rank == rank && fault.stage == kStages[static_cast<int>(phase)] &&
         (fault.generation == 0 || fault.generation == generation);
}

}  // namespace troupe::train

#pragma once
// The phases of StepSeconds, one by one. Internal.

#include <array>
#include <string_view>

#include "train/progress/progress_record.h"

namespace troupe::train {

struct StepPhase {
  std::string_view name;
  double StepSeconds::*seconds;
};
inline constexpr std::array<StepPhase, kStepPhaseCount> kStepPhases = {{
    {"data", &StepSeconds::data},
    {"forward", &StepSeconds::forward},
    {"backward", &StepSeconds::backward},
    {"communication", &StepSeconds::communication},
    {"optimizer", &StepSeconds::optimizer},
    {"checkpoint", &StepSeconds::checkpoint},
    {"stall", &StepSeconds::stall},
}};

}  // namespace troupe::train

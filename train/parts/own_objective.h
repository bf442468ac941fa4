#pragma once
// Objectives of a program's own (troupe/train/objective.h) as the run's.

#include <memory>

#include "train/objectives/objective.h"
#include "troupe/train/objective.h"

namespace troupe::train {

std::shared_ptr<const Objective> run_objective(std::shared_ptr<const TargetObjective> own);
std::shared_ptr<const Objective> run_objective(std::shared_ptr<const LogitsObjective> own);

}  // namespace troupe::train

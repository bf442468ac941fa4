#pragma once
// An optimizer of a program's own (troupe/train/optimizer.h) as the run's.

#include <memory>

#include "runtime/base/status.h"
#include "train/optimizer/optimizer.h"
#include "troupe/train/optimizer.h"

namespace troupe::train {

std::shared_ptr<const Optimizer> run_optimizer(std::shared_ptr<const ElementwiseOptimizer> own);

}  // namespace troupe::train

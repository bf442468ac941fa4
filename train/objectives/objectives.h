#pragma once
// The objectives that a configuration can name.

#include <memory>

#include "train/objectives/objective.h"

namespace troupe::train {

struct ObjectiveOptions {
  bool dft = false;  // use_dft_loss
};

// Pretraining and SFT: the cross-entropy of each target; or with `dft` each times the probability
// of its target, which counts as a constant (dynamic fine-tuning).
std::unique_ptr<const Objective> make_objective(const ObjectiveOptions& options = {});

}  // namespace troupe::train

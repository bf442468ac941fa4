#pragma once
// The objectives that a configuration can name.

#include <cstdint>
#include <memory>
#include <optional>

#include "train/objectives/objective.h"

namespace troupe::train {

// A target's weight is (H / divisor)^power, with H the entropy of the softmax over the `top`
// greatest logits.
struct EntropyAdaptiveOptions {
  std::int64_t top = 20;
  double divisor = 3.0;
  double power = 1.0;
};

struct ObjectiveOptions {
  bool dft = false;                                                       // use_dft_loss
  std::optional<EntropyAdaptiveOptions> entropy_adaptive = std::nullopt;  // use_eaft_loss
};

// Pretraining and SFT: the cross-entropy of each target; or with `dft` each times the probability
// of its target (dynamic fine-tuning), or times its weight; both count as constants.
std::unique_ptr<const Objective> make_objective(const ObjectiveOptions& options = {});

}  // namespace troupe::train

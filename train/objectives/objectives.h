#pragma once
// The objectives that a configuration can name.

#include <cstdint>
#include <memory>
#include <optional>

#include "train/objectives/objective.h"
#include "train/objectives/preference.h"

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
  // use_asft_loss: DFT with so much of the divergence from a reference (asft_alpha).
  std::optional<double> anchored = std::nullopt;
};

// Pretraining and SFT: the cross-entropy of each target; or with `dft` each times the probability
// of its target (dynamic fine-tuning), or times its weight; both count as constants.
std::unique_ptr<const Objective> make_objective(const ObjectiveOptions& options = {});

// Preference stages, on batches of sequences (rows, or segments of a row). Pairs: the better answer
// is in front of the other one. Their micro-batches give the mean over their pairs, or answers.
std::unique_ptr<const Objective> make_pair_objective(const PairOptions& options);  // dpo
std::unique_ptr<const Objective> make_kto_objective(const KtoOptions& options);
std::unique_ptr<const Objective> make_reward_objective();  // rm, with a value head

}  // namespace troupe::train

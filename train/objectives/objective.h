#pragma once
// What a training stage computes of a micro-batch: the loss, and what of it flows back.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/status.h"
#include "train/model/model.h"

namespace troupe::train {

// The tokens of a micro-batch that have a target, in order.
struct TargetTokens {
  const MicroBatch& batch;
  std::span<const std::int64_t> tokens;      // row·length + place: the target is the token behind
  std::span<const float> log_probabilities;  // of the targets
};

// Of each target: its loss, and the derivative of the sum of all targets' losses by the target's
// log-probability (cross-entropy: minus that, and −1). Dividing by the number of labels is not the
// objective's. Detached factors are constants to the derivative.
struct TargetLosses {
  std::vector<float> losses, derivatives;
};

// Holds no state: one object serves steps, evaluations and memory estimates of a run, and any
// number of threads.
class Objective {
 public:
  virtual ~Objective() = default;

  // As in messages: "DFT".
  virtual std::string_view name() const = 0;
  // The loss of an objective in which each target's follows from its own logits: one pass does it,
  // and nothing is asked of the log-probabilities. The object's; null for others.
  virtual const Loss* own_loss() const { return nullptr; }
  // What the pass, or the second of two, makes gradients of logits with.
  virtual OperatorName loss_operator() const { return OperatorName::weighted_cross_entropy; }
  // The pure function between the passes; both results have an entry for each target. Not called
  // where there is an own_loss().
  virtual Result<TargetLosses> losses_of(const TargetTokens& targets) const = 0;

  // Ok, or why these operators, or a model of this configuration, cannot be trained by it.
  Status check(const Operators& operators, const ModelConfig& model) const;

  // The first pass, forward only, of objectives that have two: nothing for others.
  // Collective where `units` are.
  Result<TargetLosses> look(Model& model, const MicroBatch& batch, UnitAccess& units,
                            Activations& activations) const;
  // The pass that gives gradients of Σ losses·scale, behind look() of the same batch and
  // parameters: see Model::forward_backward.
  Result<LossSum> learn(Model& model, const MicroBatch& batch, UnitAccess& units,
                        const TargetLosses& looked, float scale, Activations& activations) const;
  // Both, for units that need not be told of passes.
  Result<LossSum> forward_backward(Model& model, const MicroBatch& batch, UnitAccess& units,
                                   float scale, Activations& activations) const;
  // The losses alone, for evaluation.
  Result<LossSum> forward(Model& model, const MicroBatch& batch, UnitAccess& units,
                          Activations& activations) const;
};

}  // namespace troupe::train

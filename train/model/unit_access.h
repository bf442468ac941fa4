#pragma once
// How a model reaches its parameters and gradients: the place where sharding strategies stand.

#include <cstdint>
#include <span>

#include "runtime/base/status.h"
#include "train/model/parameter_layout.h"

namespace troupe::train {

enum class Phase { kForward, kBackward };

// The model acquires a unit, uses it and releases it, in forward order and then in backward order;
// with tied embeddings it acquires unit 0 for the embedding and again for the logits. A strategy
// may gather a unit in acquire and drop it in release. Spans have UnitInfo::elements elements and
// stay valid until the unit's release (gradients: until gradient_done). One thread calls. A failure
// (an aborted collective) ends the micro-batch: the model returns it at once, after releasing what
// it holds.
class UnitAccess {
 public:
  virtual ~UnitAccess() = default;
  virtual Result<std::span<const float>> acquire(int unit, Phase phase) = 0;
  virtual void release(int unit, Phase phase) = 0;
  // Where this micro-batch's gradient of the unit is ADDED to; may be asked for more than once.
  virtual Result<std::span<float>> gradient(int unit) = 0;
  // The unit's gradient for this micro-batch is complete: it may be reduced. Once per unit and
  // backward pass, in order of completion.
  virtual Status gradient_done(int unit) = 0;
};

// Everything resident: parameters and gradients of all units in two flat spans of
// ParameterLayout::total_elements(), which the caller owns. Without gradients (empty span) it
// serves forward passes only.
class ResidentUnits final : public UnitAccess {
 public:
  ResidentUnits(const ParameterLayout& layout, std::span<const float> parameters,
                std::span<float> gradients);

  Result<std::span<const float>> acquire(int unit, Phase phase) override;
  void release(int, Phase) override {}
  Result<std::span<float>> gradient(int unit) override;
  Status gradient_done(int) override { return {}; }

 private:
  const ParameterLayout& layout_;
  std::span<const float> parameters_;
  std::span<float> gradients_;
};

}  // namespace troupe::train

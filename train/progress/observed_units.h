#pragma once
// A model's way to its parameters that tells how far a pass is.

#include <span>

#include "train/model/unit_access.h"
#include "train/progress/progress_recorder.h"

namespace troupe::train {

// Tells a unit before it is acquired (a strategy may wait for others there), and a unit's gradient
// before gradient_done is passed on. All outlive it; one thread uses it.
class ObservedUnits final : public UnitAccess {
 public:
  // device: of gradients that are not the host's memory. An observer is shown a zero in the place
  // of such a gradient, which becomes its first element where the observer changes it.
  ObservedUnits(UnitAccess& inner, ProgressRecorder& recorder, Operators* device = nullptr)
      : inner_(inner), recorder_(recorder), device_(device) {}

  Result<UnitParameters> acquire(int unit, Phase phase) override;
  void release(int unit, Phase phase) override;
  Result<UnitGradient> gradient(int unit) override;
  Status gradient_done(int unit) override;

 private:
  UnitAccess& inner_;
  ProgressRecorder& recorder_;
  Operators* device_;
};

}  // namespace troupe::train

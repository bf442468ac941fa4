#pragma once
// A model's way to its parameters that tells how far a pass is.

#include <span>

#include "train/model/unit_access.h"
#include "train/progress/progress_recorder.h"

namespace troupe::train {

// Tells a unit before it is acquired (a strategy may wait for others there), and a unit's gradient
// before gradient_done is passed on. Both outlive it; one thread uses it.
class ObservedUnits final : public UnitAccess {
 public:
  ObservedUnits(UnitAccess& inner, ProgressRecorder& recorder)
      : inner_(inner), recorder_(recorder) {}

  Result<UnitParameters> acquire(int unit, Phase phase) override;
  void release(int unit, Phase phase) override;
  Result<UnitGradient> gradient(int unit) override;
  Status gradient_done(int unit) override;

 private:
  UnitAccess& inner_;
  ProgressRecorder& recorder_;
};

}  // namespace troupe::train

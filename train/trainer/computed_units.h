#pragma once
// A model's way to its parameters on a device that computes behind its callers: between the forward
// and the backward pass it waits, so that the clock tells one from the other.

#include <utility>

#include "train/model/unit_access.h"
#include "train/trainer/compute_device.h"

namespace troupe::train {

// One pass. Both outlive it; one thread uses it.
class ComputedUnits final : public UnitAccess {
 public:
  ComputedUnits(UnitAccess& inner, ComputeDevice& device) : inner_(inner), device_(device) {}

  Result<UnitParameters> acquire(int unit, Phase phase) override {
    if (phase == Phase::kBackward && !std::exchange(in_backward_, true))
      TROUPE_RETURN_IF_ERROR(device_.settle());
    return inner_.acquire(unit, phase);
  }
  void release(int unit, Phase phase) override { inner_.release(unit, phase); }
  Result<UnitGradient> gradient(int unit) override { return inner_.gradient(unit); }
  Status gradient_done(int unit) override { return inner_.gradient_done(unit); }

 private:
  UnitAccess& inner_;
  ComputeDevice& device_;
  bool in_backward_ = false;
};

}  // namespace troupe::train

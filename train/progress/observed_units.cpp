#include "train/progress/observed_units.h"

namespace troupe::train {

Result<UnitParameters> ObservedUnits::acquire(int unit, Phase phase) {
  recorder_.unit(unit, phase);
  recorder_.enter("acquire");
  auto acquired = inner_.acquire(unit, phase);
  recorder_.leave();
  return acquired;
}

void ObservedUnits::release(int unit, Phase phase) {
  recorder_.enter("release");
  inner_.release(unit, phase);
  recorder_.leave();
}

Result<UnitGradient> ObservedUnits::gradient(int unit) {
  recorder_.enter("gradient");
  auto gradient = inner_.gradient(unit);
  recorder_.leave();
  return gradient;
}

Status ObservedUnits::gradient_done(int unit) {
  const std::span<float> values = TROUPE_TRY(inner_.gradient(unit)).values;
  if (device_) {
    float first = 0;
    recorder_.gradient(unit, {&first, 1});
    if (!(first == 0)) device_->upload(&first, values.data(), sizeof first);
  } else {
    recorder_.gradient(unit, values);
  }
  recorder_.enter("gradient_done");
  const Status done = inner_.gradient_done(unit);
  recorder_.leave();
  return done;
}

}  // namespace troupe::train

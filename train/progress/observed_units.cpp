#include "train/progress/observed_units.h"

namespace troupe::train {

Result<UnitParameters> ObservedUnits::acquire(int unit, Phase phase) {
  recorder_.unit(unit, phase);
  return inner_.acquire(unit, phase);
}

Status ObservedUnits::gradient_done(int unit) {
  recorder_.gradient(unit, TROUPE_TRY(inner_.gradient(unit)));
  return inner_.gradient_done(unit);
}

}  // namespace troupe::train

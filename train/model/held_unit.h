#pragma once
// A unit's parameters for as long as the object lives.

#include <utility>

#include "train/model/unit_access.h"

namespace troupe::train {

class HeldUnit {
 public:
  static Result<HeldUnit> acquire(UnitAccess& units, int unit, Phase phase) {
    const UnitParameters parameters = TROUPE_TRY(units.acquire(unit, phase));
    return HeldUnit(units, unit, phase, parameters);
  }
  HeldUnit(HeldUnit&& other) noexcept
      : units_(std::exchange(other.units_, nullptr)),
        unit_(other.unit_),
        phase_(other.phase_),
        parameters_(other.parameters_) {}
  HeldUnit& operator=(HeldUnit&&) = delete;
  ~HeldUnit() {
    if (units_) units_->release(unit_, phase_);
  }
  const UnitParameters& parameters() const { return parameters_; }

 private:
  HeldUnit(UnitAccess& units, int unit, Phase phase, const UnitParameters& parameters)
      : units_(&units), unit_(unit), phase_(phase), parameters_(parameters) {}
  UnitAccess* units_;
  int unit_;
  Phase phase_;
  UnitParameters parameters_;
};

}  // namespace troupe::train

#include "train/model/unit_access.h"

#include "runtime/base/check.h"

namespace troupe::train {

ResidentUnits::ResidentUnits(const ParameterLayout& layout, std::span<const float> parameters,
                             std::span<float> gradients)
    : layout_(layout), parameters_(parameters), gradients_(gradients) {
  const auto total = static_cast<std::size_t>(layout.total_elements());
  TROUPE_CHECK(parameters.size() == total, "{} of {}", parameters.size(), total);
  TROUPE_CHECK(gradients.empty() || gradients.size() == total, "{} of {}", gradients.size(), total);
}

Result<std::span<const float>> ResidentUnits::acquire(int unit, Phase) {
  const UnitInfo& info = layout_.units()[static_cast<std::size_t>(unit)];
  return parameters_.subspan(static_cast<std::size_t>(info.flat_offset),
                             static_cast<std::size_t>(info.elements));
}

Result<std::span<float>> ResidentUnits::gradient(int unit) {
  TROUPE_CHECK(!gradients_.empty(), "no gradients were given");
  const UnitInfo& info = layout_.units()[static_cast<std::size_t>(unit)];
  return gradients_.subspan(static_cast<std::size_t>(info.flat_offset),
                            static_cast<std::size_t>(info.elements));
}

}  // namespace troupe::train

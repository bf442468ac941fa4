#include "train/model/gradient_rest.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace troupe::train {

GradientRest::GradientRest(const ParameterLayout& layout, int unit,
                           std::vector<GradientRange> written) {
  const std::int64_t elements = layout.units()[static_cast<std::size_t>(unit)].elements;
  std::sort(written.begin(), written.end(),
            [](const GradientRange& a, const GradientRange& b) { return a.begin < b.begin; });
  written.push_back({elements, elements});
  std::int64_t at = 0;
  for (const GradientRange& range : written) {
    TROUPE_CHECK(range.begin >= at && range.end <= elements, "[{}, {}) after {} of {} elements",
                 range.begin, range.end, at, elements);
    if (range.begin > at) ranges_.push_back({at, range.begin});
    at = range.end;
  }
}

void GradientRest::zero(Operators& operators, const UnitGradient& gradient) const {
  if (!gradient.fresh) return;
  for (const GradientRange& range : ranges_)
    operators.zero(gradient.values.data() + range.begin, range.end - range.begin);
}

}  // namespace troupe::train

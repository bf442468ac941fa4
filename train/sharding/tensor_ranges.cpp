#include "train/sharding/tensor_ranges.h"

#include <algorithm>

namespace troupe::train {
namespace {

void append(const RankLayout& layout, Region region, int unit, ElementRange range,
            std::vector<TensorRange>& ranges) {
  for (const ParameterInfo& parameter : layout.layout().parameters(unit)) {
    const std::int64_t first = parameter.offset_elements;
    const std::int64_t begin = std::max(range.begin, first);
    const std::int64_t end = std::min(range.end, first + parameter.elements);
    if (begin >= end) continue;
    ranges.push_back({.parameter = &parameter,
                      .begin = begin - first,
                      .end = end - first,
                      .offset = layout.offset(region, unit, begin)});
  }
}

}  // namespace

std::vector<TensorRange> held_ranges(const RankLayout& layout, Region region) {
  std::vector<TensorRange> ranges;
  for (int unit = 0; unit < layout.units(); ++unit) {
    const ElementRange whole{0, layout.unit_elements(unit)};
    append(layout, region, unit, layout.sharded(region) ? layout.owned(unit) : whole, ranges);
  }
  return ranges;
}

std::vector<TensorRange> saved_ranges(const RankLayout& layout, Region region) {
  std::vector<TensorRange> ranges;
  for (int unit = 0; unit < layout.units(); ++unit)
    append(layout, region, unit, layout.reduced(unit), ranges);
  return ranges;
}

}  // namespace troupe::train

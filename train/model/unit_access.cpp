#include "train/model/unit_access.h"

#include "runtime/base/check.h"

namespace troupe::train {

ParameterRef parameter_ref(const ParameterLayout& layout, std::string_view name) {
  const ParameterInfo* info = layout.find(name);
  TROUPE_CHECK(info, "{}", name);
  return {info->offset_elements, info->vector_offset};
}

ResidentUnits::ResidentUnits(const ParameterLayout& layout, std::span<const float> parameters,
                             std::span<float> gradients)
    : layout_(layout), fp32_(parameters), gradients_(gradients) {
  const auto total = static_cast<std::size_t>(layout.total_elements());
  TROUPE_CHECK(parameters.size() == total, "{} of {}", parameters.size(), total);
  TROUPE_CHECK(gradients.empty() || gradients.size() == total, "{} of {}", gradients.size(), total);
}

ResidentUnits::ResidentUnits(const ParameterLayout& layout,
                             std::span<const std::uint16_t> parameters, std::span<float> gradients)
    : layout_(layout), bf16_(parameters), gradients_(gradients) {
  const auto total = static_cast<std::size_t>(layout.total_elements());
  TROUPE_CHECK(parameters.size() == total, "{} of {}", parameters.size(), total);
  TROUPE_CHECK(gradients.empty() || gradients.size() == total, "{} of {}", gradients.size(), total);
  for (const UnitInfo& unit : layout.units())
    vectors_.emplace_back(static_cast<std::size_t>(unit.vector_elements));
}

Result<UnitParameters> ResidentUnits::acquire(int unit, Phase) {
  const UnitInfo& info = layout_.units()[static_cast<std::size_t>(unit)];
  if (!fp32_.empty())
    return UnitParameters{reinterpret_cast<const std::byte*>(fp32_.data() + info.flat_offset),
                          DType::kF32, nullptr};
  std::vector<float>& vectors = vectors_[static_cast<std::size_t>(unit)];
  expand_vectors(layout_, unit,
                 bf16_.subspan(static_cast<std::size_t>(info.flat_offset),
                               static_cast<std::size_t>(info.elements)),
                 vectors);
  return UnitParameters{reinterpret_cast<const std::byte*>(bf16_.data() + info.flat_offset),
                        DType::kBF16, vectors.data()};
}

Result<UnitGradient> ResidentUnits::gradient(int unit) {
  TROUPE_CHECK(!gradients_.empty(), "no gradients were given");
  const UnitInfo& info = layout_.units()[static_cast<std::size_t>(unit)];
  return UnitGradient{gradients_.subspan(static_cast<std::size_t>(info.flat_offset),
                                         static_cast<std::size_t>(info.elements))};
}

}  // namespace troupe::train

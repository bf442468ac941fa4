#include "train/model/unit_access.h"

#include <utility>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

void check_size(const ParameterLayout& layout, std::size_t elements) {
  const auto total = static_cast<std::size_t>(layout.total_elements());
  TROUPE_CHECK(elements == total, "{} of {}", elements, total);
}

}  // namespace

ResidentSpace::ResidentSpace(const ParameterLayout& layout, std::span<const float> parameters)
    : layout_(layout), fp32_(parameters) {
  check_size(layout, parameters.size());
}

ResidentSpace::ResidentSpace(const ParameterLayout& layout,
                             std::span<const std::uint16_t> parameters)
    : layout_(layout), bf16_(parameters) {
  check_size(layout, parameters.size());
  for (const UnitInfo& unit : layout.units())
    vectors_.emplace_back(static_cast<std::size_t>(unit.vector_elements));
}

UnitBuffer ResidentSpace::buffer(int unit) {
  const UnitInfo& info = layout_.units()[static_cast<std::size_t>(unit)];
  if (bf16_.empty())
    return {reinterpret_cast<const std::byte*>(fp32_.data() + info.flat_offset), DType::kF32,
            nullptr};
  std::vector<float>& vectors = vectors_[static_cast<std::size_t>(unit)];
  expand_vectors(layout_, unit,
                 bf16_.subspan(static_cast<std::size_t>(info.flat_offset),
                               static_cast<std::size_t>(info.elements)),
                 vectors);
  return {reinterpret_cast<const std::byte*>(bf16_.data() + info.flat_offset), DType::kBF16,
          vectors.data()};
}

ResidentUnits::ResidentUnits(const ParameterLayout& layout, std::span<const float> parameters,
                             std::span<float> gradients)
    : layout_(layout), trained_(layout, parameters), gradients_(gradients) {
  if (!gradients.empty()) check_size(layout, gradients.size());
}

ResidentUnits::ResidentUnits(const ParameterLayout& layout,
                             std::span<const std::uint16_t> parameters, std::span<float> gradients)
    : layout_(layout), trained_(layout, parameters), gradients_(gradients) {
  if (!gradients.empty()) check_size(layout, gradients.size());
}

ResidentUnits::ResidentUnits(const ModelLayout& layout, ResidentSpace trained, ResidentSpace frozen,
                             std::span<float> gradients)
    : layout_(layout.trained()),
      trained_(std::move(trained)),
      frozen_(std::move(frozen)),
      gradients_(gradients) {
  if (!gradients.empty()) check_size(layout_, gradients.size());
}

Result<UnitParameters> ResidentUnits::acquire(int unit, Phase) {
  UnitParameters parameters{trained_.buffer(unit)};
  if (frozen_) parameters.frozen = frozen_->buffer(unit);
  return parameters;
}

Result<UnitGradient> ResidentUnits::gradient(int unit) {
  TROUPE_CHECK(!gradients_.empty(), "no gradients were given");
  const UnitInfo& info = layout_.units()[static_cast<std::size_t>(unit)];
  return UnitGradient{gradients_.subspan(static_cast<std::size_t>(info.flat_offset),
                                         static_cast<std::size_t>(info.elements))};
}

}  // namespace troupe::train

#include "train/trainer/data_parallel_units.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

std::int64_t largest_other_unit(const ParameterLayout& layout) {
  std::int64_t elements = 0;
  for (std::size_t unit = 1; unit < layout.units().size(); ++unit) {
    elements = std::max(elements, layout.units()[unit].elements);
  }
  return elements;
}

}  // namespace

DataParallelUnits::DataParallelUnits(const ParameterLayout& layout, Operators& operators,
                                     collective::Communicator& communicator,
                                     std::span<const float> parameters, std::span<float> gradients,
                                     bool accumulates)
    : layout_(layout),
      operators_(operators),
      communicator_(communicator),
      parameters_(parameters),
      gradients_(gradients),
      begun_(layout.units().size(), false) {
  TROUPE_CHECK(static_cast<std::int64_t>(gradients.size()) == layout.total_elements());
  if (accumulates) {
    scratch_first_.resize(static_cast<std::size_t>(layout.units()[0].elements));
    scratch_other_.resize(static_cast<std::size_t>(largest_other_unit(layout)));
  }
}

std::size_t DataParallelUnits::scratch_bytes(const ParameterLayout& layout, bool accumulates) {
  if (!accumulates) return 0;
  return sizeof(float) *
         static_cast<std::size_t>(layout.units()[0].elements + largest_other_unit(layout));
}

void DataParallelUnits::begin_micro_batch(bool first) {
  first_ = first;
  std::fill(begun_.begin(), begun_.end(), false);
}

Result<UnitParameters> DataParallelUnits::acquire(int unit, Phase) {
  const UnitInfo& info = layout_.units()[static_cast<std::size_t>(unit)];
  return UnitParameters{reinterpret_cast<const std::byte*>(parameters_.data() + info.flat_offset),
                        DType::kF32, nullptr};
}

std::span<float> DataParallelUnits::stored_gradient(int unit) const {
  const UnitInfo& info = layout_.units()[static_cast<std::size_t>(unit)];
  return gradients_.subspan(static_cast<std::size_t>(info.flat_offset),
                            static_cast<std::size_t>(info.elements));
}

std::span<float> DataParallelUnits::scratch(int unit) {
  auto& buffer = unit == 0 ? scratch_first_ : scratch_other_;
  const auto elements =
      static_cast<std::size_t>(layout_.units()[static_cast<std::size_t>(unit)].elements);
  TROUPE_CHECK(elements <= buffer.size(), "a step of one micro-batch was announced");
  return std::span(buffer).first(elements);
}

Result<std::span<float>> DataParallelUnits::gradient(int unit) {
  const auto buffer = first_ ? stored_gradient(unit) : scratch(unit);
  if (!begun_[static_cast<std::size_t>(unit)]) {
    begun_[static_cast<std::size_t>(unit)] = true;
    operators_.zero(buffer.data(), static_cast<std::int64_t>(buffer.size()));
  }
  return buffer;
}

Status DataParallelUnits::gradient_done(int unit) {
  const auto buffer = TROUPE_TRY(gradient(unit));
  TROUPE_RETURN_IF_ERROR(communicator_.all_reduce(buffer, collective::ReduceOp::kSum));
  if (!first_) {
    const auto stored = stored_gradient(unit);
    operators_.add(stored.data(), buffer.data(), stored.data(),
                   static_cast<std::int64_t>(stored.size()));
  }
  return {};
}

}  // namespace troupe::train

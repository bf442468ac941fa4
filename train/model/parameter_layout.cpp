#include "train/model/parameter_layout.h"

#include <algorithm>
#include <cctype>

#include "runtime/base/check.h"
#include "train/model/model_tensors.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Whether `word` stands at `at` and a dot or the end follows it.
bool ends_component(std::string_view name, std::size_t at, std::size_t length) {
  return at + length == name.size() || name[at + length] == '.';
}

}  // namespace

bool parameter_decays(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string_view part : {"bias", "layernorm", "rmsnorm"})
    if (lower.find(part) != std::string::npos) return false;
  for (std::size_t at = lower.find("norm"); at != std::string::npos;
       at = lower.find("norm", at + 1))
    if (ends_component(lower, at, 4) && (at == 0 || lower[at - 1] == '.' || lower[at - 1] == '_'))
      return false;
  return true;
}

std::int64_t ParameterInfo::values() const {
  std::int64_t count = 1;
  for (const std::int64_t dim : shape) count *= dim;
  return count;
}

ParameterLayout::ParameterLayout(const ModelConfig& config)
    : ParameterLayout(model_tensors(config)) {}

ParameterLayout::ParameterLayout(const std::vector<UnitSpec>& units, const UpdateRule* rule) {
  for (const UnitSpec& unit : units) {
    units_.push_back({unit.name, static_cast<int>(parameters_.size()), 0, 0, total_elements_, 0});
    for (const TensorSpec& tensor : unit.tensors) add(tensor, rule);
    units_.back().elements = round_up(units_.back().elements, kTileElements);
    total_elements_ += units_.back().elements;
  }
  collect_groups();
}

void ParameterLayout::add(const TensorSpec& tensor, const UpdateRule* rule) {
  UnitInfo& unit = units_.back();
  ParameterInfo info;
  info.name = tensor.name;
  info.shape = tensor.shape;
  info.elements = info.values();
  if (tensor.quantization) {
    info.quantization = tensor.quantization;
    info.turns = tensor.turns;
    const std::int64_t width = info.quantized_width();
    const QuantizedParts parts(tensor.quantization, info.elements / width, width);
    info.elements = static_cast<std::int64_t>(parts.bytes / tensor.element_bytes);
    TROUPE_CHECK(parts.bytes % tensor.element_bytes == 0, "{} bytes", parts.bytes);
  }
  info.group = {.learning_rate_factor = tensor.learning_rate_factor, .decays = tensor.decays};
  info.initial = tensor.initial;
  info.unit = static_cast<int>(units_.size()) - 1;
  info.offset_elements = unit.elements;
  if (rule) {
    const TensorRule of_tensor = rule->rule_of(tensor.name, tensor.shape);
    info.group.treatment = of_tensor.treatment;
    if (!tensor.never_decays) info.group.decays = of_tensor.decays.value_or(info.group.decays);
    info.update_unit = of_tensor.unit;
    info.offset_elements = round_up(unit.elements, kUpdateBlockElements);
    const std::int64_t room = round_up(info.offset_elements, kTileElements) - info.offset_elements;
    if (of_tensor.unit == UpdateUnit::kTensor) {
      has_whole_tensors_ = true;
      if (info.elements > room) info.offset_elements += room;
    }
  }
  if (tensor.shape.size() == 1) {
    info.vector_offset = unit.vector_elements;
    unit.vector_elements += round_up(info.elements, kParameterAlignElements);
  }
  unit.elements = info.offset_elements + round_up(info.elements, kParameterAlignElements);
  ++unit.parameter_count;
  const bool is_new = by_name_.emplace(info.name, parameters_.size()).second;
  TROUPE_CHECK(is_new, "{} twice", info.name);
  parameters_.push_back(std::move(info));
}

void ParameterLayout::collect_groups() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool last = i + 1 == parameters_.size();
    groups_.add(last ? total_elements_ : flat_offset(parameters_[i + 1]), parameters_[i].group);
  }
}

std::vector<std::int64_t> ParameterLayout::cuts(int unit) const {
  const std::int64_t end = units_[static_cast<std::size_t>(unit)].elements;
  std::vector<std::int64_t> cuts;
  std::int64_t at = 0;
  const auto cut_until = [&](std::int64_t last) {
    for (; at <= last; at += kTileElements) cuts.push_back(at);
  };
  for (const ParameterInfo& parameter : parameters(unit)) {
    if (parameter.update_unit != UpdateUnit::kTensor) continue;
    const std::int64_t begin = parameter.offset_elements, last = begin + parameter.elements - 1;
    if (begin / kTileElements == last / kTileElements) continue;
    cut_until(begin);
    at = std::max(at, round_up(last + 1, kTileElements));
  }
  cut_until(end);
  return cuts;
}

std::span<const ParameterInfo> ParameterLayout::parameters(int unit) const {
  const UnitInfo& info = units_[static_cast<std::size_t>(unit)];
  return std::span(parameters_)
      .subspan(static_cast<std::size_t>(info.first_parameter),
               static_cast<std::size_t>(info.parameter_count));
}

const ParameterInfo* ParameterLayout::find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &parameters_[found->second];
}

std::int64_t ParameterLayout::parameter_elements() const {
  std::int64_t sum = 0;
  for (const ParameterInfo& parameter : parameters_) sum += parameter.values();
  return sum;
}

void expand_vectors(const ParameterLayout& layout, int unit,
                    std::span<const std::uint16_t> unit_bf16, std::span<float> vectors) {
  const UnitInfo& info = layout.units()[static_cast<std::size_t>(unit)];
  TROUPE_CHECK(static_cast<std::int64_t>(unit_bf16.size()) == info.elements &&
                   static_cast<std::int64_t>(vectors.size()) == info.vector_elements,
               "{} and {} elements for {} and {} of unit {}", unit_bf16.size(), vectors.size(),
               info.elements, info.vector_elements, info.name);
  for (const ParameterInfo& parameter : layout.parameters(unit))
    if (parameter.vector_offset >= 0)
      float_from_bf16(unit_bf16.data() + parameter.offset_elements,
                      vectors.data() + parameter.vector_offset, parameter.elements);
}

const ParameterInfo* ParameterLayout::at_flat_offset(std::int64_t offset) const {
  const auto after = std::upper_bound(
      parameters_.begin(), parameters_.end(), offset,
      [&](std::int64_t value, const ParameterInfo& p) { return value < flat_offset(p); });
  if (after == parameters_.begin()) return nullptr;
  const ParameterInfo& candidate = *std::prev(after);
  return offset < flat_offset(candidate) + candidate.elements ? &candidate : nullptr;
}

}  // namespace troupe::train

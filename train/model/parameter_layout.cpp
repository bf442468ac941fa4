#include "train/model/parameter_layout.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "runtime/base/check.h"
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

ParameterLayout::ParameterLayout(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  begin_unit("embedding");
  add("model.embed_tokens.weight", {config.vocab_size, hidden});
  end_unit();
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    begin_unit(fmt::format("layers.{}", i));
    const std::string prefix = fmt::format("model.layers.{}.", i);
    add(prefix + "input_layernorm.weight", {hidden});
    // Neighbours, so that one product serves the three (and the two of the MLP).
    add(prefix + "self_attn.q_proj.weight", {config.query_width(), hidden});
    add(prefix + "self_attn.k_proj.weight", {config.key_width(), hidden});
    add(prefix + "self_attn.v_proj.weight", {config.key_width(), hidden});
    add(prefix + "self_attn.o_proj.weight", {hidden, config.query_width()});
    add(prefix + "post_attention_layernorm.weight", {hidden});
    add(prefix + "mlp.gate_proj.weight", {intermediate, hidden});
    add(prefix + "mlp.up_proj.weight", {intermediate, hidden});
    add(prefix + "mlp.down_proj.weight", {hidden, intermediate});
    end_unit();
  }
  begin_unit("head");
  add("model.norm.weight", {hidden});
  if (!config.tie_word_embeddings) add("lm_head.weight", {config.vocab_size, hidden});
  end_unit();
  collect_decay_ranges();
}

void ParameterLayout::begin_unit(std::string name) {
  units_.push_back(
      {std::move(name), static_cast<int>(parameters_.size()), 0, 0, total_elements_, 0});
}

void ParameterLayout::add(std::string name, std::vector<std::int64_t> shape) {
  UnitInfo& unit = units_.back();
  ParameterInfo info;
  info.elements = 1;
  for (const std::int64_t dim : shape) info.elements *= dim;
  info.decays = parameter_decays(name);
  info.unit = static_cast<int>(units_.size()) - 1;
  info.offset_elements = unit.elements;
  if (shape.size() == 1) {
    info.vector_offset = unit.vector_elements;
    unit.vector_elements += round_up(info.elements, kParameterAlignElements);
  }
  info.shape = std::move(shape);
  info.name = std::move(name);
  unit.elements += round_up(info.elements, kParameterAlignElements);
  ++unit.parameter_count;
  by_name_.emplace(info.name, parameters_.size());
  parameters_.push_back(std::move(info));
}

void ParameterLayout::end_unit() {
  units_.back().elements = round_up(units_.back().elements, kTileElements);
  total_elements_ += units_.back().elements;
}

void ParameterLayout::collect_decay_ranges() {
  for (const ParameterInfo& parameter : parameters_) {
    if (decay_ranges_.empty()) {
      decay_ranges_.push_back({0, 0, parameter.decays});
    } else if (decay_ranges_.back().decays != parameter.decays) {
      decay_ranges_.back().end = flat_offset(parameter);
      decay_ranges_.push_back({flat_offset(parameter), 0, parameter.decays});
    }
  }
  decay_ranges_.back().end = total_elements_;
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
  for (const ParameterInfo& parameter : parameters_) sum += parameter.elements;
  return sum;
}

std::int64_t ParameterLayout::vector_elements_max() const {
  std::int64_t most = 0;
  for (const UnitInfo& unit : units_) most = std::max(most, unit.vector_elements);
  return most;
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

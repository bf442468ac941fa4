#include "train/model/parameter_layout.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/format.h>

#include "runtime/base/check.h"
#include "train/model/model_family.h"
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
  const std::int64_t hidden = config.hidden_size;
  const EndNames names = end_names(config);
  begin_unit("embedding");
  add(names.token_embedding + ".weight", {config.vocab_size, hidden}, {});
  if (!names.position_embedding.empty())
    add(names.position_embedding + ".weight", {config.max_position_embeddings, hidden}, {});
  end_unit();
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) add_block(config, i);
  begin_unit("head");
  add_norm(config, names.final_norm, hidden);
  if (!config.tie_word_embeddings) add(names.output + ".weight", {config.vocab_size, hidden}, {});
  end_unit();
  collect_groups();
}

void ParameterLayout::add_block(const ModelConfig& config, std::int64_t layer) {
  const std::int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const BlockNames names = block_names(config, layer);
  // GPT-2's scheme: what adds to the stream begins smaller the more layers add.
  InitialValue residual;
  if (config.transposed_weights)
    residual.scale = 1.0 / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  const auto matrix = [&](const std::string& module, std::int64_t out, std::int64_t in,
                          InitialValue initial = {}) {
    if (config.transposed_weights) std::swap(out, in);
    add(module + ".weight", {out, in}, initial);
  };
  const auto bias = [&](const std::string& module, std::int64_t width, bool there) {
    if (there) add(module + ".bias", {width}, {InitialValue::Kind::kZeros});
  };
  // Products over one input: neighbours, so that one product serves all.
  const auto matrices = [&](const std::vector<std::string>& modules,
                            const std::vector<std::int64_t>& widths, bool biases) {
    for (std::size_t i = 0; i < modules.size(); ++i) matrix(modules[i], widths[i], hidden);
    for (std::size_t i = 0; i < modules.size(); ++i) bias(modules[i], widths[i], biases);
  };

  begin_unit(fmt::format("layers.{}", layer));
  add_norm(config, names.attention_norm, hidden);
  if (names.qkv.size() == 1)
    matrices(names.qkv, {config.qkv_width()}, config.qkv_bias);
  else
    matrices(names.qkv, {config.query_width(), config.key_width(), config.key_width()},
             config.qkv_bias);
  for (const std::string& norm : {names.query_norm, names.key_norm})
    if (!norm.empty()) add(norm + ".weight", {config.head_dim}, {InitialValue::Kind::kOnes});
  matrix(names.attention_output, hidden, config.query_width(), residual);
  bias(names.attention_output, hidden, config.attention_output_bias);
  add_norm(config, names.mlp_norm, hidden);
  matrices(names.mlp_inputs, std::vector(names.mlp_inputs.size(), intermediate), config.mlp_bias);
  matrix(names.mlp_output, hidden, intermediate, residual);
  bias(names.mlp_output, hidden, config.mlp_bias);
  end_unit();
}

void ParameterLayout::add_norm(const ModelConfig& config, const std::string& module,
                               std::int64_t width) {
  add(module + ".weight", {width}, {InitialValue::Kind::kOnes});
  if (config.norm != NormKind::kLayer) return;
  parameters_.back().decays = false;
  add(module + ".bias", {width}, {InitialValue::Kind::kZeros});
}

void ParameterLayout::begin_unit(std::string name) {
  units_.push_back(
      {std::move(name), static_cast<int>(parameters_.size()), 0, 0, total_elements_, 0});
}

void ParameterLayout::add(std::string name, std::vector<std::int64_t> shape, InitialValue initial) {
  UnitInfo& unit = units_.back();
  ParameterInfo info;
  info.elements = 1;
  for (const std::int64_t dim : shape) info.elements *= dim;
  info.decays = parameter_decays(name);
  info.initial = initial;
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

void ParameterLayout::collect_groups() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool last = i + 1 == parameters_.size();
    groups_.add(last ? total_elements_ : flat_offset(parameters_[i + 1]),
                {.decays = parameters_[i].decays});
  }
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

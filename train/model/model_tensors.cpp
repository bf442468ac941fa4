#include "train/model/model_tensors.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "train/model/mlp.h"
#include "train/model/model_family.h"
#include "train/model/norm.h"

namespace troupe::train {
namespace {

void add(UnitSpec& unit, std::string name, std::vector<std::int64_t> shape, InitialValue initial) {
  const bool decays = parameter_decays(name);
  unit.tensors.push_back({std::move(name), std::move(shape), initial, decays});
}

void add_norm(UnitSpec& unit, const ModelConfig& config, const std::string& module,
              std::int64_t width) {
  add(unit, module + ".weight", {width}, {config.norm->initial_weight});
  if (!config.norm->decays_by_name) unit.tensors.back().decays = false;
  if (!config.norm->has_bias) return;
  add(unit, module + ".bias", {width}, {InitialValue::Kind::kZeros});
}

UnitSpec layer_tensors(const ModelConfig& config, std::int64_t layer) {
  const std::int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const LayerNames names = layer_names(config, layer);
  UnitSpec unit{fmt::format("layers.{}", layer), {}};
  InitialValue residual;
  if (config.scales_residual_weights)
    residual.scale = 1.0 / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  const auto matrix = [&](const std::string& module, std::int64_t out, std::int64_t in,
                          InitialValue initial = {}) {
    if (config.transposed_weights) std::swap(out, in);
    add(unit, module + ".weight", {out, in}, initial);
    unit.tensors.back().is_layer_product = true;
  };
  const auto bias = [&](const std::string& module, std::int64_t width, bool there) {
    if (there) add(unit, module + ".bias", {width}, {InitialValue::Kind::kZeros});
  };
  // Products over one input are neighbours, so that one product serves all.
  const auto matrices = [&](const std::vector<std::string>& modules,
                            const std::vector<std::int64_t>& widths, bool biases) {
    for (std::size_t i = 0; i < modules.size(); ++i) matrix(modules[i], widths[i], hidden);
    for (std::size_t i = 0; i < modules.size(); ++i) bias(modules[i], widths[i], biases);
  };

  add_norm(unit, config, names.attention_norm, hidden);
  if (names.qkv.size() == 1)
    matrices(names.qkv, {config.qkv_width()}, config.qkv_bias);
  else
    matrices(names.qkv, {config.query_width(), config.key_width(), config.key_width()},
             config.qkv_bias);
  for (const std::string& norm : {names.query_norm, names.key_norm})
    if (!norm.empty())
      add(unit, norm + ".weight", {config.head_dim}, {config.norm->initial_weight});
  matrix(names.attention_output, hidden, config.query_width(), residual);
  bias(names.attention_output, hidden, config.attention_output_bias);
  if (config.post_norms) add_norm(unit, config, names.post_attention_norm, hidden);
  add_norm(unit, config, names.mlp_norm, hidden);
  // A single one may hold all that the activation takes.
  const auto mlp_inputs = static_cast<std::int64_t>(names.mlp_inputs.size());
  matrices(
      names.mlp_inputs,
      std::vector(names.mlp_inputs.size(), config.activation->inputs * intermediate / mlp_inputs),
      config.mlp_bias);
  matrix(names.mlp_output, hidden, intermediate, residual);
  bias(names.mlp_output, hidden, config.mlp_bias);
  if (config.post_norms) add_norm(unit, config, names.post_mlp_norm, hidden);
  return unit;
}

}  // namespace

std::vector<UnitSpec> model_tensors(const ModelConfig& config) {
  if (const auto units = family_of(config).units) return units(config);
  const std::int64_t hidden = config.hidden_size;
  const EndNames names = end_names(config);
  std::vector<UnitSpec> units{{"embedding", {}}};
  add(units.back(), names.token_embedding + ".weight", {config.vocab_size, hidden}, {});
  if (!names.position_embedding.empty())
    add(units.back(), names.position_embedding + ".weight",
        {config.max_position_embeddings, hidden}, {});
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i)
    units.push_back(layer_tensors(config, i));
  units.push_back({"head", {}});
  add_norm(units.back(), config, names.final_norm, hidden);
  if (!config.tie_word_embeddings)
    add(units.back(), names.output + ".weight", {config.vocab_size, hidden}, {});
  return units;
}

}  // namespace troupe::train

#include "train/model/adapter_tensors.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/base/check.h"
#include "train/model/model_family.h"
#include "train/model/model_tensors.h"

namespace troupe::train {
namespace {

// The linear layers of a transformer layer that have one input.
std::array<std::vector<std::string>, kLinearPlaces> modules_by_place(const ModelConfig& config,
                                                                     std::int64_t layer) {
  const LayerNames names = layer_names(config, layer);
  return {names.qkv, {names.attention_output}, names.mlp_inputs, {names.mlp_output}};
}

const LoraModule* find(std::span<const LoraModule> adapters, const std::string& module) {
  const auto found = std::ranges::find(adapters, module, &LoraModule::module);
  return found == adapters.end() ? nullptr : &*found;
}

}  // namespace

std::string lora_a_name(const std::string& module) { return module + ".lora_A.weight"; }
std::string lora_b_name(const std::string& module) { return module + ".lora_B.weight"; }
std::string lora_magnitude_name(const std::string& module) {
  return module + ".lora_magnitude_vector";
}

bool is_adapter_tensor(std::string_view name) {
  return name.find(".lora_") != std::string_view::npos;
}

std::vector<std::vector<TensorSpec>> adapter_tensors(const ModelConfig& config,
                                                     std::span<const LoraModule> adapters) {
  const std::vector<UnitSpec> base = model_tensors(config);
  std::vector<std::vector<TensorSpec>> units(base.size());
  std::size_t placed = 0;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto unit = static_cast<std::size_t>(layer + 1);
    const auto outputs_and_inputs = [&](const std::string& module) {
      const auto weight =
          std::ranges::find(base[unit].tensors, module + ".weight", &TensorSpec::name);
      TROUPE_CHECK(weight != base[unit].tensors.end(), "{}", module);
      const bool swapped = config.transposed_weights;
      return std::pair(weight->shape[swapped ? 1 : 0], weight->shape[swapped ? 0 : 1]);
    };
    for (const std::vector<std::string>& modules : modules_by_place(config, layer)) {
      std::vector<TensorSpec> a, b, magnitudes;
      for (const std::string& module : modules) {
        const LoraModule* adapter = find(adapters, module);
        if (!adapter) continue;
        ++placed;
        const auto [outputs, inputs] = outputs_and_inputs(module);
        // PEFT's initial values, kaiming_uniform with a = √5: U(−1/√in, 1/√in).
        a.push_back({lora_a_name(module),
                     {adapter->rank, inputs},
                     {InitialValue::Kind::kUniform, 1.0 / std::sqrt(static_cast<double>(inputs))},
                     true});
        b.push_back({lora_b_name(module),
                     {outputs, adapter->rank},
                     {InitialValue::Kind::kZeros},
                     true,
                     adapter->b_learning_rate_factor});
        if (adapter->dora)
          magnitudes.push_back({lora_magnitude_name(module),
                                {outputs},
                                {InitialValue::Kind::kOnes},
                                true,
                                adapter->b_learning_rate_factor});
      }
      for (const auto* list : {&a, &b, &magnitudes})
        units[unit].insert(units[unit].end(), list->begin(), list->end());
    }
  }
  TROUPE_CHECK(placed == adapters.size(), "{} of {} adapters are at linear layers of the model",
               placed, adapters.size());
  return units;
}

AdapterSizes adapter_sizes(const ModelConfig& config, const Trainables& trainables) {
  const std::span<const LoraModule> adapters = trainables.lora;
  AdapterSizes sizes;
  if (adapters.empty()) return sizes;
  const std::array<std::int64_t, kLinearPlaces> outputs = {
      config.qkv_width(), config.hidden_size, config.mlp_input_width(), config.hidden_size};
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto places = modules_by_place(config, layer);
    for (std::size_t place = 0; place < places.size(); ++place) {
      std::int64_t columns = 0;
      bool magnitudes = false;
      for (const std::string& module : places[place]) {
        const LoraModule* adapter = find(adapters, module);
        if (!adapter) continue;
        columns += adapter->rank;
        magnitudes = magnitudes || adapter->dora;
      }
      sizes.columns[place] = std::max(sizes.columns[place], columns);
      if (magnitudes) sizes.magnitudes = std::max(sizes.magnitudes, outputs[place]);
    }
  }
  sizes.quantized = sizes.magnitudes > 0 && trainables.base.quantization;
  sizes.drops = std::ranges::any_of(adapters, [](const LoraModule& a) { return a.dropout > 0; });
  return sizes;
}

}  // namespace troupe::train

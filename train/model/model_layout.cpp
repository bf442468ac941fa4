#include "train/model/model_layout.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/model/adapter_tensors.h"
#include "train/model/model_tensors.h"

namespace troupe::train {
namespace {

struct Parts {
  std::vector<UnitSpec> trained, frozen;
};

// The model's tensors and those of its adapters, by whether they are trained.
Parts parts_of(const ModelConfig& config, const Trainables& trainables) {
  Parts parts{.trained = model_tensors(config), .frozen = {}};
  for (const UnitSpec& unit : parts.trained) parts.frozen.push_back({unit.name, {}});
  if (trainables.everything) return parts;
  const auto is_trained = [&](const TensorSpec& tensor) {
    return std::ranges::find(trainables.tensors, tensor.name) != trainables.tensors.end();
  };
  const std::vector<std::vector<TensorSpec>> adapters = adapter_tensors(config, trainables.lora);
  for (std::size_t i = 0; i < parts.trained.size(); ++i) {
    std::vector<TensorSpec>& trained = parts.trained[i].tensors;
    // (Not std::ranges', whose result clang 14 cannot compile with this standard library.)
    const auto frozen = std::stable_partition(trained.begin(), trained.end(), is_trained);
    parts.frozen[i].tensors.assign(frozen, trained.end());
    for (TensorSpec& tensor : parts.frozen[i].tensors) {
      if (!tensor.is_layer_product) continue;
      tensor.quantization = trainables.base.quantization;
      tensor.element_bytes = dtype_size(trainables.base.beside);
    }
    trained.erase(frozen, trained.end());
    trained.insert(trained.end(), adapters[i].begin(), adapters[i].end());
  }
  return parts;
}

}  // namespace

ModelLayout::ModelLayout(const ModelConfig& config, const Trainables& trainables)
    : trainables_(trainables) {
  const Parts parts = parts_of(config, trainables);
  trained_ = ParameterLayout(parts.trained, trainables.rule.get());
  frozen_ = ParameterLayout(parts.frozen);
}

std::int64_t ModelLayout::first_trained_layer() const {
  const int layers = units() - 2;
  for (int layer = 0; layer < layers; ++layer)
    if (trains(layer + 1)) return layer;
  return layers;
}

const ParameterInfo* ModelLayout::find(std::string_view name) const {
  const ParameterInfo* info = trained_.find(name);
  return info ? info : frozen_.find(name);
}

ParameterRef ModelLayout::ref(std::string_view name) const {
  const ParameterInfo* info = trained_.find(name);
  const bool frozen = info == nullptr;
  if (frozen) info = frozen_.find(name);
  TROUPE_CHECK(info, "{}", name);
  return {info->offset_elements, info->vector_offset, frozen, info->quantization};
}

const LoraModule* ModelLayout::adapter(std::string_view module) const {
  const auto found = std::ranges::find(trainables_.lora, module, &LoraModule::module);
  return found == trainables_.lora.end() ? nullptr : &*found;
}

}  // namespace troupe::train

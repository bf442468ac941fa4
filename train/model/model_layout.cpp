#include "train/model/model_layout.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "train/model/adapter_tensors.h"
#include "train/model/model_tensors.h"

namespace troupe::train {
namespace {

enum class Part { kTrained, kFrozen };

// The units of the model with the tensors of one part.
std::vector<UnitSpec> tensors_of(const ModelConfig& config, const Trainables& trainables,
                                 Part part) {
  std::vector<UnitSpec> units = model_tensors(config);
  if (trainables.everything) {
    if (part == Part::kFrozen)
      for (UnitSpec& unit : units) unit.tensors.clear();
    return units;
  }
  const auto is_trained = [&](const TensorSpec& tensor) {
    return std::ranges::find(trainables.tensors, tensor.name) != trainables.tensors.end();
  };
  const std::vector<std::vector<TensorSpec>> adapters = adapter_tensors(config, trainables.lora);
  for (std::size_t i = 0; i < units.size(); ++i) {
    std::vector<TensorSpec>& tensors = units[i].tensors;
    std::erase_if(tensors, [&](const TensorSpec& tensor) {
      return is_trained(tensor) != (part == Part::kTrained);
    });
    if (part == Part::kTrained)
      tensors.insert(tensors.end(), adapters[i].begin(), adapters[i].end());
  }
  return units;
}

}  // namespace

ModelLayout::ModelLayout(const ModelConfig& config, const Trainables& trainables)
    : trainables_(trainables),
      trained_(tensors_of(config, trainables, Part::kTrained)),
      frozen_(tensors_of(config, trainables, Part::kFrozen)) {}

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
  return {info->offset_elements, info->vector_offset, frozen};
}

const LoraModule* ModelLayout::adapter(std::string_view module) const {
  const auto found = std::ranges::find(trainables_.lora, module, &LoraModule::module);
  return found == trainables_.lora.end() ? nullptr : &*found;
}

}  // namespace troupe::train

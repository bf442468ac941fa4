#include "train/model/model_layout.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/check.h"
#include "train/model/adapter_tensors.h"
#include "train/model/model_family.h"
#include "train/model/model_tensors.h"

namespace troupe::train {
namespace {

// The module that a weight is of.
std::string_view module_of(const TensorSpec& weight) {
  return std::string_view(weight.name).substr(0, weight.name.rfind('.'));
}

struct Parts {
  std::vector<UnitSpec> trained, frozen;
};

// What TRL's models with a value head have, and torch's initial values.
void add_value_head(const ModelConfig& config, UnitSpec& head) {
  const std::string module = kValueHeadModule;
  const InitialValue initial{InitialValue::Kind::kUniform,
                             1 / std::sqrt(static_cast<double>(config.hidden_size))};
  head.tensors.push_back({.name = module + ".weight",
                          .shape = {1, config.hidden_size},
                          .initial = initial,
                          .decays = true});
  head.tensors.push_back({.name = module + ".bias", .shape = {1}, .initial = initial});
  // A head that nothing uses has no gradient, and does not shrink either.
  for (TensorSpec& tensor : head.tensors)
    if (tensor.name == end_names(config).output + ".weight") {
      tensor.decays = false;
      tensor.never_decays = true;
    }
}

void group(TensorSpec& tensor, const OptimizerGroups& groups) {
  if (groups.decays && !tensor.never_decays) tensor.decays = groups.decays(tensor.name);
  if (groups.vector_rate_factor && tensor.shape.size() == 1)
    tensor.learning_rate_factor = *groups.vector_rate_factor;
}

// Frozen copies of `copied`, by unit.
void add_reference(Reference reference, const std::vector<UnitSpec>& copied,
                   std::vector<UnitSpec>& frozen) {
  if (reference == Reference::kNone) return;
  for (std::size_t i = 0; i < copied.size(); ++i) {
    for (TensorSpec tensor : copied[i].tensors) {
      tensor.name.insert(0, kReferencePrefix);
      frozen[i].tensors.push_back(std::move(tensor));
    }
  }
}

// The model's tensors and those of its adapters, by whether they are trained.
Parts parts_of(const ModelConfig& config, const Trainables& trainables) {
  Parts parts{.trained = model_tensors(config), .frozen = {}};
  if (trainables.value_head) add_value_head(config, parts.trained.back());
  for (const UnitSpec& unit : parts.trained) parts.frozen.push_back({unit.name, {}});
  if (trainables.everything) {
    add_reference(trainables.reference, parts.trained, parts.frozen);
    return parts;
  }
  const std::vector<UnitSpec> whole = parts.trained;
  const auto is_trained = [&](const TensorSpec& tensor) {
    return tensor.name.starts_with(kValueHeadPrefix) ||
           std::ranges::find(trainables.tensors, tensor.name) != trainables.tensors.end();
  };
  const std::vector<std::vector<TensorSpec>> adapters = adapter_tensors(config, trainables.lora);
  for (std::size_t i = 0; i < parts.trained.size(); ++i) {
    std::vector<TensorSpec>& trained = parts.trained[i].tensors;
    // (Not std::ranges', whose result clang 14 cannot compile with this standard library.)
    const auto frozen = std::stable_partition(trained.begin(), trained.end(), is_trained);
    parts.frozen[i].tensors.assign(frozen, trained.end());
    for (TensorSpec& tensor : parts.frozen[i].tensors) {
      if (!tensor.is_layer_product || trainables.base.skips(module_of(tensor))) continue;
      tensor.quantization = trainables.base.quantization;
      tensor.element_bytes = dtype_size(trainables.base.beside);
      tensor.turns = config.transposed_weights;
    }
    trained.erase(frozen, trained.end());
  }
  add_reference(trainables.reference,
                trainables.reference == Reference::kOther ? whole : parts.trained, parts.frozen);
  for (std::size_t i = 0; i < parts.trained.size(); ++i)
    parts.trained[i].tensors.insert(parts.trained[i].tensors.end(), adapters[i].begin(),
                                    adapters[i].end());
  return parts;
}

}  // namespace

ModelLayout::ModelLayout(const ModelConfig& config, const Trainables& trainables)
    : trainables_(trainables) {
  Parts parts = parts_of(config, trainables);
  for (UnitSpec& unit : parts.trained)
    for (TensorSpec& tensor : unit.tensors) group(tensor, trainables.groups);
  trained_ = ParameterLayout(parts.trained, trainables.rule.get());
  frozen_ = ParameterLayout(parts.frozen);
}

ModelLayout ModelLayout::of_reference() const {
  TROUPE_CHECK(trainables_.reference != Reference::kNone, "a model without a reference");
  ModelLayout seen = *this;
  seen.trainables_ = {.everything = false, .base = trainables_.base};
  seen.is_reference_ = true;
  return seen;
}

std::int64_t ModelLayout::first_trained_layer() const {
  const int layers = units() - 2;
  for (int layer = 0; layer < layers; ++layer)
    if (trains(layer + 1)) return layer;
  return layers;
}

const ParameterInfo* ModelLayout::find(std::string_view name) const {
  if (is_reference_) {
    const ParameterInfo* copy = frozen_.find(std::string(kReferencePrefix) + std::string(name));
    return copy ? copy : frozen_.find(name);
  }
  const ParameterInfo* info = trained_.find(name);
  return info ? info : frozen_.find(name);
}

ParameterRef ModelLayout::ref(std::string_view name) const {
  const ParameterInfo* info = find(name);
  TROUPE_CHECK(info, "{}", name);
  const bool frozen = is_reference_ || !trained_.find(name);
  return {info->offset_elements, info->vector_offset, frozen, info->quantization};
}

std::int64_t ModelLayout::reference_elements() const {
  std::int64_t elements = 0;
  if (trainables_.reference == Reference::kNone) return elements;
  for (const ParameterInfo& parameter : frozen_.parameters())
    if (parameter.name.starts_with(kReferencePrefix)) elements += parameter.elements;
  return elements;
}

const LoraModule* ModelLayout::adapter(std::string_view module) const {
  const auto found = std::ranges::find(trainables_.lora, module, &LoraModule::module);
  return found == trainables_.lora.end() ? nullptr : &*found;
}

}  // namespace troupe::train

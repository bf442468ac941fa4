// The tensors of a program's own model (train/parts/own_model_passes.h). They lie in the unit that
// language models have for their one layer; the sizes are the smallest that any model has, and
// count for what is planned with alone.
#include "train/model/family_parts.h"
#include "train/model/parameter_layout.h"

namespace troupe::train {
namespace {

void read_tensors(ConfigReader& reader, ModelConfig& config) {
  config.initializer_range = 1.0;
  const json::Value* tensors = json::find(reader.value(), "tensors");
  if (!tensors || !tensors->is_array() || tensors->get_array().empty())
    return reader.fail("tensors must be a list of tensors");
  for (const json::Value& tensor : tensors->get_array()) {
    const json::Value* shape = json::find(tensor, "shape");
    bool good = json::find_string(tensor, "name") && json::find_number(tensor, "deviation") &&
                json::find_bool(tensor, "decays") && shape && shape->is_array();
    if (good)
      for (const json::Value& size : shape->get_array()) good &= size.is_int64();
    if (!good) return reader.fail("a tensor has name, shape, deviation and decays");
  }
}

std::vector<UnitSpec> tensor_units(const ModelConfig& config) {
  UnitSpec all{"layers.0", {}};
  for (const json::Value& tensor : config.source.at("tensors").get_array()) {
    TensorSpec& spec = all.tensors.emplace_back();
    spec.name = *json::find_string(tensor, "name");
    for (const json::Value& size : json::find(tensor, "shape")->get_array())
      spec.shape.push_back(size.get_int64());
    const double deviation = *json::find_number(tensor, "deviation");
    if (deviation == 0) spec.initial.kind = InitialValue::Kind::kZeros;
    spec.initial.scale = deviation;
    spec.decays = *json::find_bool(tensor, "decays");
  }
  return {{"embedding", {}}, std::move(all), {"head", {}}};
}

}  // namespace

const ModelFamily& troupe_own_family() {
  static const ModelFamily kOwn{.model_type = "troupe_own",
                                .architecture = "OwnModel",
                                .base_prefix = "model.",
                                .max_position_embeddings = 1,
                                .read = read_tensors,
                                .units = tensor_units};
  return kOwn;
}

}  // namespace troupe::train

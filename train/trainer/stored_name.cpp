#include "train/trainer/stored_name.h"

#include "train/model/model_family.h"

namespace troupe::train {

std::string stored_name(const TensorReader& tensors, const ModelConfig& config,
                        std::string_view name, bool unties_head) {
  if (!tensors.find(name)) {
    for (const std::string& other : other_names(config, name))
      if (tensors.find(other)) return other;
    // A head that the files hold under any of its names goes before its embedding's copy.
    const EndNames ends = end_names(config);
    if (unties_head && name == ends.output + ".weight")
      return stored_name(tensors, config, ends.token_embedding + ".weight");
  }
  return std::string(name);
}

}  // namespace troupe::train

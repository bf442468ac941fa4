#include "train/model/flops.h"

#include <algorithm>

#include "train/model/adapter_tensors.h"
#include "train/model/model_family.h"

namespace troupe::train {
namespace {

// Keys seen by all tokens of a row together: 1 + 2 + … + w + w + ….
double keys_seen(std::int64_t length, std::int64_t window) {
  const auto growing = static_cast<double>(std::min(length, window));
  const auto full = static_cast<double>(std::max<std::int64_t>(length - window, 0));
  return growing * (growing + 1) / 2 + full * growing;
}

}  // namespace

double model_flops(const ModelConfig& config, const ModelLayout& layout, std::int64_t rows,
                   std::int64_t length) {
  // What a program's own model does with its tensors is not known: as if each were multiplied with.
  if (family_of(config).units)
    return 6 * static_cast<double>(rows) * static_cast<double>(layout.parameter_elements());
  const auto hidden = static_cast<double>(config.hidden_size);
  const auto queries = static_cast<double>(config.query_width());
  const double block_weights =
      hidden * (static_cast<double>(config.qkv_width()) + queries +
                static_cast<double>(config.mlp_input_width() + config.intermediate_size));
  const double head_weights = hidden * static_cast<double>(config.vocab_size);
  const std::int64_t first = layout.trains(0) ? 0 : layout.first_trained_layer();
  // Weights that are multiplied with, of all layers and of those that the backward pass reaches.
  double weights = head_weights, reached = head_weights, trained = 0;
  double attention = 0, reached_attention = 0;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    double adapters = 0;
    for (const ParameterInfo& info : layout.trained().parameters(static_cast<int>(layer) + 1)) {
      if (info.shape.size() != 2) continue;
      trained += static_cast<double>(info.elements);
      if (is_adapter_tensor(info.name)) adapters += static_cast<double>(info.elements);
    }
    const double keys = 4 * queries * keys_seen(length, config.window(layer).value_or(length));
    weights += block_weights + adapters;
    attention += keys;
    if (layer < first) continue;
    reached += block_weights + adapters;
    reached_attention += keys;
  }
  if (!layout.ref(end_names(config).output + ".weight").frozen) trained += head_weights;
  const double products = 2 * static_cast<double>(length) * (weights + reached + trained);
  return static_cast<double>(rows) * (products + attention + 2 * reached_attention);
}

}  // namespace troupe::train

#include "train/model/flops.h"

#include <algorithm>

namespace troupe::train {
namespace {

// Keys seen by all tokens of a row together: 1 + 2 + … + w + w + ….
double keys_seen(std::int64_t length, std::int64_t window) {
  const auto growing = static_cast<double>(std::min(length, window));
  const auto full = static_cast<double>(std::max<std::int64_t>(length - window, 0));
  return growing * (growing + 1) / 2 + full * growing;
}

}  // namespace

double model_flops(const ModelConfig& config, std::int64_t rows, std::int64_t length) {
  const auto hidden = static_cast<double>(config.hidden_size);
  const auto queries = static_cast<double>(config.query_width());
  const double block_weights =
      hidden * (static_cast<double>(config.qkv_width()) + queries +
                static_cast<double>(config.mlp_input_width() + config.intermediate_size));
  const double weights = static_cast<double>(config.num_hidden_layers) * block_weights +
                         hidden * static_cast<double>(config.vocab_size);
  double attention = 0;
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    attention += 4 * queries * keys_seen(length, config.window(layer).value_or(length));
  const double forward =
      static_cast<double>(rows) * (2 * weights * static_cast<double>(length) + attention);
  return 3 * forward;
}

}  // namespace troupe::train

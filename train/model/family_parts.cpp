#include "train/model/family_parts.h"

#include <algorithm>

#include <fmt/format.h>

#include "train/model/rope_config.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kSlidingWindow = 4096;
}  // namespace

void read_activation(ConfigReader& reader, std::string_view key,
                     std::initializer_list<std::string_view> accepted, std::string_view instead) {
  const auto activation = json::find_string(reader.value(), key);
  if (activation && std::ranges::find(accepted, *activation) == accepted.end())
    reader.refuse("{}={} is not supported; {}", key, *activation, instead);
}

void refuse_true(ConfigReader& reader, const ModelConfig& config, std::string_view key) {
  bool on = false;
  reader.boolean(key, on);
  if (on)
    reader.refuse("{}=true is not supported for {}; use a model without it", key,
                  config.model_type);
}

void read_dropout(ConfigReader& reader, ModelConfig& config,
                  std::initializer_list<DropoutKey> keys) {
  std::string found, off;
  for (const DropoutKey& k : keys) {
    *k.probability = k.fallback;
    reader.number(k.key, *k.probability);
    if (!(*k.probability >= 0 && *k.probability < 1))
      return reader.fail("{} {} must be at least 0 and less than 1", k.key, *k.probability);
    if (*k.probability == 0) continue;
    const std::string_view comma = found.empty() ? "" : ", ";
    found += fmt::format("{}{}={}", comma, k.key, *k.probability);
    off += fmt::format("{}\"{}\": 0", comma, k.key);
  }
  if (!found.empty())
    config.notes.push_back(
        fmt::format("{}: dropout while training; for none write {} into config.json", found, off));
}

void read_attention_bias(ConfigReader& reader, ModelConfig& config) {
  reader.boolean("attention_bias", config.qkv_bias);
  config.attention_output_bias = config.qkv_bias;
}

void read_llama_like(ConfigReader& reader, ModelConfig& config) {
  read_activation(reader, "hidden_act", {"silu", "swish"},
                  fmt::format("{} models use silu", config.model_type));
  read_dropout(reader, config, {{"attention_dropout", &config.attention_dropout, 0.0}});
  read_rope(reader, config);
}

void read_sliding_window(ConfigReader& reader, ModelConfig& config) {
  std::int64_t window = kSlidingWindow;
  if (reader.contains("sliding_window") && !reader.has("sliding_window")) return;
  reader.size("sliding_window", window, false, 1 << 30);
  config.sliding_window = window;
}

void read_window_of_all_layers(ConfigReader& reader, ModelConfig& config) {
  read_sliding_window(reader, config);
  if (config.sliding_window)
    config.windowed_layers.assign(static_cast<std::size_t>(config.num_hidden_layers), true);
}

void read_layer_types(ConfigReader& reader, ModelConfig& config) {
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  const json::Value& list = *json::find(reader.value(), "layer_types");
  if (!list.is_array() || list.get_array().size() != layers)
    return reader.fail("layer_types must be a list with a string for each of {} layers", layers);
  for (const json::Value& value : list.get_array()) {
    const std::string type = value.is_string() ? std::string(value.get_string()) : "";
    if (type != "full_attention" && type != "sliding_attention")
      return reader.refuse(
          "layer_types of '{}' is not supported; use full_attention and sliding_attention", type);
    config.windowed_layers.push_back(type == "sliding_attention");
    if (config.windowed_layers.back() && !config.sliding_window)
      return reader.fail("layer_types has sliding_attention, and there is no sliding_window");
  }
}

void read_windowed_layers(ConfigReader& reader, ModelConfig& config) {
  bool on = false;
  reader.boolean("use_sliding_window", on);
  if (on) read_sliding_window(reader, config);
  const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
  if (!reader.has("layer_types")) {
    std::int64_t first = 28;
    if (json::find_integer(reader.value(), "max_window_layers") != 0)
      reader.size("max_window_layers", first, false);
    else
      first = 0;
    if (!config.sliding_window) return;
    for (std::size_t i = 0; i < layers; ++i)
      config.windowed_layers.push_back(static_cast<std::int64_t>(i) >= first);
    return;
  }
  read_layer_types(reader, config);
}

void refuse_sliding_window(ConfigReader& reader, const ModelConfig& config) {
  if (reader.has("sliding_window"))
    reader.refuse("sliding_window is not supported for {}; use a model without it",
                  config.model_type);
}

}  // namespace troupe::train

#pragma once
// Keys of config.json that several families have. Private to this folder.

#include <initializer_list>
#include <string_view>

#include "train/model/config_reader.h"
#include "train/model/model_config.h"
#include "train/model/model_family.h"

namespace troupe::train {

// `key`, where it is there, must name one of `accepted`. `instead` ends the refusal: "llama models
// use silu".
void read_activation(ConfigReader& reader, std::string_view key,
                     std::initializer_list<std::string_view> accepted, std::string_view instead);
// hidden_act of a family with SwiGLU, attention_dropout, rotary positions.
void read_llama_like(ConfigReader& reader, ModelConfig& config);
// attention_bias, which is of all four of attention's products.
void read_attention_bias(ConfigReader& reader, ModelConfig& config);

// Refuses a key that is true for a family whose modules have no such thing.
void refuse_true(ConfigReader& reader, const ModelConfig& config, std::string_view key);

struct DropoutKey {
  std::string_view key;
  double* probability;
  double fallback;  // the class's default
};
// Says in the configuration's notes which are not 0.
void read_dropout(ConfigReader& reader, ModelConfig& config,
                  std::initializer_list<DropoutKey> keys);

// sliding_window, or the classes' default of 4096 without the key; null means none.
void read_sliding_window(ConfigReader& reader, ModelConfig& config);
void read_window_of_all_layers(ConfigReader& reader, ModelConfig& config);
// Windows as Qwen2 and Qwen3 have them: use_sliding_window, max_window_layers, layer_types.
void read_windowed_layers(ConfigReader& reader, ModelConfig& config);
// layer_types: a string for each layer, full_attention or sliding_attention. Sets windowed_layers.
void read_layer_types(ConfigReader& reader, ModelConfig& config);
// For families whose attention sees all tokens before.
void refuse_sliding_window(ConfigReader& reader, const ModelConfig& config);

}  // namespace troupe::train

#pragma once
// Small configurations and files for the tests of adapters.

#include <doctest/doctest.h>

#include <string>

#include "runtime/base/file_system.h"
#include "train/model/model_config.h"

namespace troupe::train::tests {

// Two layers of width 8 (GPT-2: likewise), key and value heads half as wide as the query's.
inline ModelConfig small_model(std::string_view type = "llama", bool tied = false,
                               std::int64_t layers = 2) {
  json::Value config =
      type == "gpt2" ? json::Value{{"model_type", type}, {"vocab_size", 10}, {"n_embd", 8},
                                   {"n_layer", layers},  {"n_head", 2},      {"n_positions", 16}}
                     : json::Value{{"model_type", type},
                                   {"vocab_size", 10},
                                   {"hidden_size", 8},
                                   {"intermediate_size", 12},
                                   {"num_hidden_layers", layers},
                                   {"num_attention_heads", 2},
                                   {"num_key_value_heads", 1},
                                   {"head_dim", 4},
                                   {"tie_word_embeddings", tied}};
  auto read = ModelConfig::from_json(config, "config.json");
  REQUIRE_MESSAGE(read.ok(), read.status().to_string());
  return *read;
}

inline std::string file_text(FileSystem& files, const std::string& path) {
  auto text = files.read(path, 1u << 26);
  REQUIRE_MESSAGE(text.ok(), text.status().to_string());
  return *text;
}

// The model of a folder.
inline ModelConfig model_of(FileSystem& files, const std::string& folder) {
  auto read = ModelConfig::parse(file_text(files, folder + "/config.json"), "config.json");
  REQUIRE_MESSAGE(read.ok(), read.status().to_string());
  return *read;
}

}  // namespace troupe::train::tests

#pragma once
// What config.json says of a model.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

// How rotary frequencies are stretched for longer contexts (`rope_scaling`, `rope_parameters`).
struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3 };
  Kind kind = Kind::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 8192;
};

// A Llama-family decoder. Defaults are those of HF's LlamaConfig where config.json lacks a key.
struct ModelConfig {
  std::string model_type = "llama";
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;  // default: num_attention_heads
  std::int64_t head_dim = 0;             // default: hidden_size / num_attention_heads
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  std::optional<std::int64_t> bos_token_id;
  std::vector<std::int64_t> eos_token_ids;
  // config.json as it was read, for writing it back with keys that mean nothing here.
  json::Object source;

  // Of an object as config.json holds it; `name` stands in errors. Whatever would change the
  // computation and is not implemented is refused by its key (kUnsupported); sizes that do not fit
  // together and values of the wrong type are kInvalidArgument.
  static Result<ModelConfig> from_json(const json::Value& value, std::string_view name);
  // Parses the text of a config.json.
  static Result<ModelConfig> parse(std::string_view text, std::string_view name);

  // `source` with the keys above set where it lacks them or they were changed. Write it with
  // json::write_indented(…, true), as HF does.
  json::Object to_json() const;

  std::int64_t query_width() const { return num_attention_heads * head_dim; }
  std::int64_t key_width() const { return num_key_value_heads * head_dim; }
  // Queries, keys and values side by side.
  std::int64_t qkv_width() const { return query_width() + 2 * key_width(); }
};

}  // namespace troupe::train

#include "train/model/model_config.h"

#include <cmath>

#include "train/model/config_reader.h"
#include "train/model/model_family.h"
#include "train/model/rope_config.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kLayersMax = 1 << 12;
constexpr std::int64_t kMistralWindow = 4096;  // the classes' default of sliding_window

void read_sizes(ConfigReader& reader, const ModelFamily& family, ModelConfig& config) {
  const ConfigKeys& keys = family.keys;
  const bool gpt2 = family.model_type == "gpt2";
  reader.size("vocab_size", config.vocab_size, true);
  reader.size(keys.hidden_size, config.hidden_size, true);
  reader.size(keys.intermediate_size, config.intermediate_size, !gpt2);
  reader.size(keys.num_hidden_layers, config.num_hidden_layers, true, kLayersMax);
  reader.size(keys.num_attention_heads, config.num_attention_heads, true);
  if (gpt2 && config.intermediate_size == 0) config.intermediate_size = 4 * config.hidden_size;
  config.max_position_embeddings = family.max_position_embeddings;
  reader.size(keys.max_position_embeddings, config.max_position_embeddings, false);
  config.norm_eps = family.norm_eps;
  reader.number(keys.norm_eps, config.norm_eps);
  reader.number("initializer_range", config.initializer_range);
  config.tie_word_embeddings = family.tie_word_embeddings;
  reader.boolean("tie_word_embeddings", config.tie_word_embeddings);
}

void read_heads(ConfigReader& reader, const ModelFamily& family, ModelConfig& config) {
  // A default holds for an absent key; null means "as many as queries" and "from the hidden size".
  if (!reader.contains("num_key_value_heads"))
    config.num_key_value_heads = family.num_key_value_heads.value_or(0);
  if (!reader.contains("head_dim")) config.head_dim = family.head_dim.value_or(0);
  if (config.positions == PositionKind::kRotary) {
    reader.size("num_key_value_heads", config.num_key_value_heads, false);
    reader.size("head_dim", config.head_dim, false);
  }
  if (!reader.status().ok()) return;
  if (config.num_key_value_heads == 0) config.num_key_value_heads = config.num_attention_heads;
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    reader.fail("num_attention_heads {} is no multiple of num_key_value_heads {}",
                config.num_attention_heads, config.num_key_value_heads);
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_attention_heads != 0)
      reader.fail("{} {} is no multiple of {} {}, and there is no head_dim",
                  family.keys.hidden_size, config.hidden_size, family.keys.num_attention_heads,
                  config.num_attention_heads);
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  if (config.positions == PositionKind::kRotary && config.head_dim % 2 != 0)
    reader.fail("head_dim {} must be even for rotary positions", config.head_dim);
}

// `layer_types` of Qwen2 and Qwen3, or what their max_window_layers says.
void read_layer_types(ConfigReader& reader, ModelConfig& config) {
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

void read_window(ConfigReader& reader, ModelConfig& config) {
  if (!reader.status().ok()) return;
  const auto read = [&](std::int64_t window) {
    if (reader.contains("sliding_window") && !reader.has("sliding_window")) return;
    reader.size("sliding_window", window, false, 1 << 30);
    config.sliding_window = window;
  };
  if (config.model_type == "mistral") {
    read(kMistralWindow);
    if (config.sliding_window)
      config.windowed_layers.assign(static_cast<std::size_t>(config.num_hidden_layers), true);
    if (reader.has("layer_types"))
      reader.refuse("layer_types is not supported for mistral; use a model without it");
  } else if (config.model_type == "qwen2" || config.model_type == "qwen3") {
    bool on = false;
    reader.boolean("use_sliding_window", on);
    if (on) read(kMistralWindow);
    read_layer_types(reader, config);
  } else if (reader.has("sliding_window")) {
    reader.refuse("sliding_window is not supported for {}; use a model without it",
                  config.model_type);
  }
}

void read_token_ids(ConfigReader& reader, const ModelFamily& family, ModelConfig& config) {
  const auto inside = [&](std::optional<std::int64_t> id) { return id && *id < config.vocab_size; };
  if (reader.has("bos_token_id")) {
    config.bos_token_id = json::find_integer(reader.value(), "bos_token_id");
    if (!config.bos_token_id) return reader.fail("bos_token_id must be an integer");
  } else if (!reader.contains("bos_token_id") && inside(family.bos_token_id)) {
    config.bos_token_id = family.bos_token_id;
  }
  if (!reader.contains("eos_token_id") && inside(family.eos_token_id))
    config.eos_token_ids.push_back(*family.eos_token_id);
  if (!reader.has("eos_token_id")) return;
  const json::Value& eos = *json::find(reader.value(), "eos_token_id");
  const auto add = [&](const json::Value& value) {
    if (value.is_int64())
      config.eos_token_ids.push_back(value.get_int64());
    else
      reader.fail("eos_token_id must be an integer or a list of integers");
  };
  if (eos.is_array())
    for (const json::Value& value : eos.get_array()) add(value);
  else
    add(eos);
}

void read_dtype(ConfigReader& reader, ModelConfig& config) {
  for (const std::string_view key : {"torch_dtype", "dtype"})
    if (const auto name = json::find_string(reader.value(), key))
      config.dtype = dtype_from_torch_name(*name);
}

struct DropoutKey {
  std::string_view key;
  double* probability;
  double fallback;  // the class's default
};

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

void read_llama_like(ConfigReader& reader, ModelConfig& config) {
  const std::string& type = config.model_type;
  bool attention_bias = false;
  reader.boolean("attention_bias", attention_bias);
  reader.boolean("mlp_bias", config.mlp_bias);
  if (attention_bias && type != "llama" && type != "qwen3")
    reader.refuse("attention_bias=true is not supported for {}; use a model without it", type);
  if (config.mlp_bias && type != "llama")
    reader.refuse("mlp_bias=true is not supported for {}; use a model without it", type);
  config.qkv_bias = attention_bias || type == "qwen2";
  config.attention_output_bias = attention_bias;
  config.qk_norm = type == "qwen3";
  if (const auto activation = json::find_string(reader.value(), "hidden_act"))
    if (*activation != "silu" && *activation != "swish")
      reader.refuse("hidden_act={} is not supported; {} models use silu", *activation, type);
  read_dropout(reader, config, {{"attention_dropout", &config.attention_dropout, 0.0}});
  read_rope(reader, config);
}

void read_gpt2(ConfigReader& reader, ModelConfig& config) {
  config.norm = NormKind::kLayer;
  config.positions = PositionKind::kLearned;
  config.mlp = MlpKind::kGeluTanh;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  config.transposed_weights = true;
  reader.boolean("scale_attn_weights", config.scale_by_head_dim);
  reader.boolean("scale_attn_by_inverse_layer_idx", config.scale_by_inverse_layer);
  bool cross_attention = false;
  reader.boolean("add_cross_attention", cross_attention);
  if (cross_attention)
    reader.refuse("add_cross_attention=true is not supported; use a decoder-only model");
  if (const auto activation = json::find_string(reader.value(), "activation_function"))
    if (*activation != "gelu_new")
      reader.refuse("activation_function={} is not supported; use gelu_new", *activation);
  read_dropout(reader, config,
               {{"attn_pdrop", &config.attention_dropout, 0.1},
                {"embd_pdrop", &config.embedding_dropout, 0.1},
                {"resid_pdrop", &config.residual_dropout, 0.1}});
}

}  // namespace

Result<ModelConfig> ModelConfig::from_json(const json::Value& value, std::string_view name) {
  if (!value.is_object()) return error(Code::kInvalidArgument, "{}: not a JSON object", name);
  const auto type = json::find_string(value, "model_type");
  if (!type)
    return error(Code::kInvalidArgument, "{}: model_type is missing; supported: {}", name,
                 supported_model_types());
  const ModelFamily* family = find_model_family(*type);
  if (!family)
    return error(Code::kUnsupported, "{}: model_type={} is not supported; supported: {}", name,
                 *type, supported_model_types());
  ModelConfig config;
  config.model_type = *type;
  config.source = value.get_object();
  ConfigReader reader(value, name);
  read_sizes(reader, *family, config);
  if (config.model_type == "gpt2")
    read_gpt2(reader, config);
  else
    read_llama_like(reader, config);
  read_heads(reader, *family, config);
  read_window(reader, config);
  read_token_ids(reader, *family, config);
  read_dtype(reader, config);
  if (reader.has("quantization_config"))
    reader.refuse("quantization_config is not supported; use a model without it");
  if (!reader.status().ok()) return reader.status();
  return config;
}

Result<ModelConfig> ModelConfig::parse(std::string_view text, std::string_view name) {
  return from_json(TROUPE_TRY(json::parse(text, name)), name);
}

json::Object ModelConfig::to_json() const {
  const ModelFamily& family = family_of(*this);
  const ConfigKeys& keys = family.keys;
  json::Object out = source;
  // What the source leaves to its default stays out.
  const auto set = [&](std::string_view key, auto value, auto fallback) {
    if (out.contains(key) || value != fallback) out[key] = value;
  };
  if (!out.contains("architectures"))
    out["architectures"] = json::Array{json::Value(family.architecture)};
  out["model_type"] = model_type;
  out["vocab_size"] = vocab_size;
  out[keys.hidden_size] = hidden_size;
  out[keys.num_hidden_layers] = num_hidden_layers;
  out[keys.num_attention_heads] = num_attention_heads;
  if (positions == PositionKind::kRotary) {
    out[keys.intermediate_size] = intermediate_size;
    set("num_key_value_heads", num_key_value_heads,
        family.num_key_value_heads.value_or(num_attention_heads));
    set("head_dim", head_dim, family.head_dim.value_or(hidden_size / num_attention_heads));
    if (!out.contains("rope_theta") && !out.contains("rope_parameters") && rope_theta != 10000.0)
      out["rope_theta"] = rope_theta;
  } else if (intermediate_size != 4 * hidden_size) {
    out[keys.intermediate_size] = intermediate_size;
  }
  set(keys.max_position_embeddings, max_position_embeddings, family.max_position_embeddings);
  set(keys.norm_eps, norm_eps, family.norm_eps);
  set("tie_word_embeddings", tie_word_embeddings, family.tie_word_embeddings);
  if (!out.contains("torch_dtype") && !out.contains("dtype")) out["torch_dtype"] = "float32";
  return out;
}

double ModelConfig::attention_scale(std::int64_t layer) const {
  const double by_head = scale_by_head_dim ? 1.0 / std::sqrt(static_cast<double>(head_dim)) : 1.0;
  return scale_by_inverse_layer ? by_head / static_cast<double>(layer + 1) : by_head;
}

std::optional<std::int64_t> ModelConfig::window(std::int64_t layer) const {
  if (windowed_layers.empty() || !windowed_layers[static_cast<std::size_t>(layer)])
    return std::nullopt;
  return sliding_window;
}

std::optional<std::int64_t> ModelConfig::length_limit() const {
  if (positions == PositionKind::kLearned) return max_position_embeddings;
  return std::nullopt;
}

}  // namespace troupe::train

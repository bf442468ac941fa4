#include "train/model/model_config.h"

#include <cmath>

#include "train/model/config_reader.h"
#include "train/model/mlp.h"
#include "train/model/model_family.h"
#include "train/model/norm.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kLayersMax = 1 << 12;

void read_sizes(ConfigReader& reader, const ModelFamily& family, ModelConfig& config) {
  const ConfigKeys& keys = family.keys;
  config.vocab_size = family.vocab_size;
  config.num_attention_heads = family.num_attention_heads;
  reader.size("vocab_size", config.vocab_size, family.vocab_size == 0);
  reader.size(keys.hidden_size, config.hidden_size, true);
  reader.size(keys.intermediate_size, config.intermediate_size, family.intermediate_factor == 0);
  reader.size(keys.num_hidden_layers, config.num_hidden_layers, true, kLayersMax);
  reader.size(keys.num_attention_heads, config.num_attention_heads,
              family.num_attention_heads == 0);
  if (config.intermediate_size == 0)
    config.intermediate_size = family.intermediate_factor * config.hidden_size;
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

// transformers' defaults of BitsAndBytesConfig.
void read_quantization(ConfigReader& reader, ModelConfig& config) {
  if (!reader.has("quantization_config")) return;
  const json::Value& value = *json::find(reader.value(), "quantization_config");
  const auto is_on = [&](std::string_view key) {
    return json::find_bool(value, key).value_or(false);
  };
  const bool four_bits = is_on("load_in_4bit"), eight_bits = is_on("load_in_8bit");
  const std::string method = json::find_string(value, "quant_method")
                                 .value_or(four_bits || eight_bits ? "bitsandbytes" : "none");
  constexpr const char* kWayOut =
      "models that bitsandbytes keeps in 4 or 8 bits are trained over (load_in_4bit, "
      "load_in_8bit); use one of those, or one that is not quantised";
  if (method != "bitsandbytes")
    return reader.refuse("quantization_config: quant_method={} is not supported: {}", method,
                         kWayOut);
  if (four_bits == eight_bits)
    return reader.refuse("quantization_config says neither load_in_4bit nor load_in_8bit: {}",
                         kWayOut);
  const std::string type = json::find_string(value, "bnb_4bit_quant_type").value_or("fp4");
  const auto code = eight_bits ? WeightCode::kInt8 : weight_code_from_name(type);
  if (!code || (four_bits && *code == WeightCode::kInt8))
    return reader.refuse("quantization_config: bnb_4bit_quant_type={} is not supported: {}", type,
                         kWayOut);
  config.quantization = {.code = *code, .nested = four_bits && is_on("bnb_4bit_use_double_quant")};
  const json::Value* skipped = json::find(value, "llm_int8_skip_modules");
  if (!skipped || skipped->is_null()) return;
  const auto is_text = [](const json::Value& name) { return name.is_string(); };
  if (!skipped->is_array() || !std::ranges::all_of(skipped->get_array(), is_text))
    return reader.fail("quantization_config: llm_int8_skip_modules must be a list of names");
  for (const json::Value& name : skipped->get_array())
    config.quantization_skipped.emplace_back(name.get_string());
}

// The language model of one that holds more. What only the outer object says of it is carried over.
Result<ModelConfig> text_model_of(const json::Value& value, const ModelFamily& family,
                                  std::string_view name) {
  const json::Value* text = json::find(value, "text_config");
  if (text == nullptr || !text->is_object())
    return error(Code::kInvalidArgument, "{}: a model of type {} has an object text_config, and {}",
                 name, family.model_type, text ? "this is none" : "there is none");
  const auto type = json::find_string(*text, "model_type");
  if (type && *type != family.text_type)
    return error(Code::kUnsupported,
                 "{}: text_config: model_type={} is not supported in a model of type {}; it is {}",
                 name, *type, family.model_type, family.text_type);
  json::Value inner = *text;
  inner.as_object()["model_type"] = family.text_type;
  for (const std::string_view key : {"dtype", "torch_dtype", "bos_token_id", "eos_token_id",
                                     "tie_word_embeddings", "quantization_config"}) {
    const json::Value* outer = json::find(value, key);
    if (outer && !json::find(inner, key)) inner.as_object()[key] = *outer;
  }
  ModelConfig config =
      TROUPE_TRY(ModelConfig::from_json(inner, fmt::format("{}: text_config", name)));
  config.is_part = true;
  config.notes.insert(
      config.notes.begin(),
      fmt::format("model_type={}: its language model is trained and written, as {} (class {}); "
                  "what is there for pictures is left out",
                  family.model_type, config.model_type, family_of(config).architecture));
  return config;
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
  if (!family->text_type.empty()) return text_model_of(value, *family, name);
  ModelConfig config;
  config.model_type = *type;
  config.source = value.get_object();
  ConfigReader reader(value, name);
  read_sizes(reader, *family, config);
  family->read(reader, config);
  read_heads(reader, *family, config);
  read_token_ids(reader, *family, config);
  read_dtype(reader, config);
  read_quantization(reader, config);
  if (!reader.status().ok()) return reader.status();
  return config;
}

Result<ModelConfig> ModelConfig::parse(std::string_view text, std::string_view name) {
  ModelConfig config = TROUPE_TRY(from_json(TROUPE_TRY(json::parse(text, name)), name));
  if (family_of(config).units)
    return error(Code::kUnsupported,
                 "{}: model_type={}: a model of a program's own, which that program alone can use",
                 name, config.model_type);
  return config;
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
  if (intermediate_size != family.intermediate_factor * hidden_size)
    out[keys.intermediate_size] = intermediate_size;
  if (positions == PositionKind::kRotary) {
    set("num_key_value_heads", num_key_value_heads,
        family.num_key_value_heads.value_or(num_attention_heads));
    set("head_dim", head_dim, family.head_dim.value_or(hidden_size / num_attention_heads));
    if (!out.contains("rope_theta") && !out.contains("rope_parameters") && rope.theta != 10000.0)
      out["rope_theta"] = rope.theta;
  }
  set(keys.max_position_embeddings, max_position_embeddings, family.max_position_embeddings);
  set(keys.norm_eps, norm_eps, family.norm_eps);
  set("tie_word_embeddings", tie_word_embeddings, family.tie_word_embeddings);
  if (!out.contains("torch_dtype") && !out.contains("dtype")) out["torch_dtype"] = "float32";
  return out;
}

std::string ModelConfig::saved_text(std::string text) const {
  return is_part ? json::write_indented(to_json(), false) + "\n" : std::move(text);
}

std::int64_t ModelConfig::mlp_input_width() const { return activation->inputs * intermediate_size; }

std::int64_t ModelConfig::norm_statistics(std::int64_t rows) const {
  return norm->statistics(rows, hidden_size);
}

std::int64_t ModelConfig::head_norm_statistics(std::int64_t rows) const {
  const std::int64_t weights = norm->weight_offset == 0 ? 0 : 2 * head_dim;
  return rows * (num_attention_heads + num_key_value_heads) + weights;
}

double ModelConfig::attention_scale(std::int64_t layer) const {
  const double divisor = query_scalar.value_or(static_cast<double>(head_dim));
  const double by_head = scale_by_head_dim ? 1.0 / std::sqrt(divisor) : 1.0;
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

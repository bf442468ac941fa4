#include "train/model/model_config.h"

#include <array>
#include <limits>

namespace troupe::train {
namespace {

// Sizes above these belong to no model and would overflow the arithmetic on them.
constexpr std::int64_t kSizeMax = 1 << 24;
constexpr std::int64_t kLayersMax = 1 << 12;

constexpr std::string_view kSupportedTypes = "llama";

// Reads keys of one object and remembers the first that was wrong.
class Reader {
 public:
  Reader(const json::Value& value, std::string_view name) : value_(value), name_(name) {}

  bool has(std::string_view key) const {
    const json::Value* found = json::find(value_, key);
    return found && !found->is_null();
  }

  void size(std::string_view key, std::int64_t& out, bool required,
            std::int64_t greatest = kSizeMax) {
    if (!has(key)) {
      if (required) fail("{}: {} is missing", name_, key);
      return;
    }
    const auto number = json::find_integer(value_, key);
    if (!number || *number < 1 || *number > greatest)
      return fail("{}: {} must be an integer from 1 to {}", name_, key, greatest);
    out = *number;
  }

  void number(std::string_view key, double& out) {
    if (!has(key)) return;
    const auto number = json::find_number(value_, key);
    if (!number || !(*number >= 0) || *number > std::numeric_limits<float>::max())
      return fail("{}: {} must be a number that is not negative", name_, key);
    out = *number;
  }

  void boolean(std::string_view key, bool& out) {
    if (!has(key)) return;
    const auto boolean = json::find_bool(value_, key);
    if (!boolean) return fail("{}: {} must be true or false", name_, key);
    out = *boolean;
  }

  template <typename... Args>
  void fail(fmt::format_string<Args...> format, Args&&... args) {
    if (status_.ok()) status_ = error(Code::kInvalidArgument, format, std::forward<Args>(args)...);
  }
  void refuse(std::string message) {
    if (status_.ok())
      status_ = Status(Code::kUnsupported, std::string(name_) + ": " + std::move(message));
  }

  const Status& status() const { return status_; }
  const json::Value& value() const { return value_; }
  std::string_view name() const { return name_; }

 private:
  const json::Value& value_;
  std::string_view name_;
  Status status_;
};

// Both shapes of the rotary keys: rope_theta and rope_scaling, and v5's rope_parameters with all.
void read_rope(Reader& reader, ModelConfig& config) {
  reader.number("rope_theta", config.rope_theta);
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    if (!reader.has(key)) continue;
    const json::Value& value = *json::find(reader.value(), key);
    if (!value.is_object())
      return reader.fail("{}: {} must be an object or null", reader.name(), key);
    Reader inner(value, reader.name());
    inner.number("rope_theta", config.rope_theta);
    std::string type = "default";
    for (const std::string_view type_key : {"type", "rope_type"})
      if (const auto named = json::find_string(value, type_key)) type = *named;
    RopeScaling& scaling = config.rope_scaling;
    if (type == "linear" || type == "llama3") {
      scaling.kind = type == "linear" ? RopeScaling::Kind::kLinear : RopeScaling::Kind::kLlama3;
      if (!inner.has("factor")) inner.fail("{}: {}.factor is missing", reader.name(), key);
      inner.number("factor", scaling.factor);
      inner.number("low_freq_factor", scaling.low_freq_factor);
      inner.number("high_freq_factor", scaling.high_freq_factor);
      inner.size("original_max_position_embeddings", scaling.original_max_position_embeddings,
                 type == "llama3");
      if (inner.status().ok() &&
          (scaling.factor < 1.0 ||
           (type == "llama3" &&
            (scaling.low_freq_factor <= 0 || scaling.high_freq_factor <= scaling.low_freq_factor))))
        inner.fail("{}: {} needs factor ≥ 1 and 0 < low_freq_factor < high_freq_factor",
                   reader.name(), key);
    } else if (type != "default") {
      inner.refuse(
          fmt::format("{} of type {} is not supported; use default, linear or llama3", key, type));
    }
    if (!inner.status().ok()) {
      if (inner.status().code() == Code::kUnsupported)
        return reader.refuse(inner.status().message().substr(reader.name().size() + 2));
      return reader.fail("{}", inner.status().message());
    }
  }
  if (config.rope_theta <= 0) reader.fail("{}: rope_theta must be positive", reader.name());
}

void read_token_ids(Reader& reader, ModelConfig& config) {
  if (reader.has("bos_token_id")) {
    config.bos_token_id = json::find_integer(reader.value(), "bos_token_id");
    if (!config.bos_token_id)
      return reader.fail("{}: bos_token_id must be an integer", reader.name());
  }
  if (!reader.has("eos_token_id")) return;
  const json::Value& eos = *json::find(reader.value(), "eos_token_id");
  const auto add = [&](const json::Value& value) {
    if (value.is_int64())
      config.eos_token_ids.push_back(value.get_int64());
    else
      reader.fail("{}: eos_token_id must be an integer or a list of integers", reader.name());
  };
  if (eos.is_array())
    for (const json::Value& value : eos.get_array()) add(value);
  else
    add(eos);
}

void refuse_unsupported(Reader& reader) {
  for (const std::string_view key : {"attention_bias", "mlp_bias"}) {
    bool on = false;
    reader.boolean(key, on);
    if (on)
      reader.refuse(fmt::format("{}=true is not supported; use a model without these biases", key));
  }
  if (const auto activation = json::find_string(reader.value(), "hidden_act"))
    if (*activation != "silu" && *activation != "swish")
      reader.refuse(
          fmt::format("hidden_act={} is not supported; Llama models use silu", *activation));
  for (const std::string_view key : {"sliding_window", "quantization_config"})
    if (reader.has(key))
      reader.refuse(fmt::format("{} is not supported; use a model without it", key));
  double dropout = 0;
  reader.number("attention_dropout", dropout);
  if (dropout != 0) reader.refuse("attention_dropout above 0 is not supported; set it to 0.0");
}

void check_sizes(Reader& reader, ModelConfig& config) {
  if (!reader.status().ok()) return;
  if (config.num_key_value_heads == 0) config.num_key_value_heads = config.num_attention_heads;
  if (config.num_attention_heads % config.num_key_value_heads != 0)
    reader.fail("{}: num_attention_heads {} is no multiple of num_key_value_heads {}",
                reader.name(), config.num_attention_heads, config.num_key_value_heads);
  if (config.head_dim == 0) {
    if (config.hidden_size % config.num_attention_heads != 0)
      reader.fail(
          "{}: hidden_size {} is no multiple of num_attention_heads {}, and there is no "
          "head_dim",
          reader.name(), config.hidden_size, config.num_attention_heads);
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  if (config.head_dim % 2 != 0)
    reader.fail("{}: head_dim {} must be even for rotary positions", reader.name(),
                config.head_dim);
}

}  // namespace

Result<ModelConfig> ModelConfig::from_json(const json::Value& value, std::string_view name) {
  if (!value.is_object()) return error(Code::kInvalidArgument, "{}: not a JSON object", name);
  const auto type = json::find_string(value, "model_type");
  if (!type)
    return error(Code::kInvalidArgument, "{}: model_type is missing; supported: {}", name,
                 kSupportedTypes);
  if (*type != "llama")
    return error(Code::kUnsupported, "{}: model_type={} is not supported; supported: {}", name,
                 *type, kSupportedTypes);
  ModelConfig config;
  config.source = value.get_object();
  Reader reader(value, name);
  reader.size("vocab_size", config.vocab_size, true);
  reader.size("hidden_size", config.hidden_size, true);
  reader.size("intermediate_size", config.intermediate_size, true);
  reader.size("num_hidden_layers", config.num_hidden_layers, true, kLayersMax);
  reader.size("num_attention_heads", config.num_attention_heads, true);
  reader.size("num_key_value_heads", config.num_key_value_heads, false);
  reader.size("head_dim", config.head_dim, false);
  reader.size("max_position_embeddings", config.max_position_embeddings, false);
  reader.number("rms_norm_eps", config.rms_norm_eps);
  reader.number("initializer_range", config.initializer_range);
  reader.boolean("tie_word_embeddings", config.tie_word_embeddings);
  read_rope(reader, config);
  read_token_ids(reader, config);
  refuse_unsupported(reader);
  check_sizes(reader, config);
  if (!reader.status().ok()) return reader.status();
  return config;
}

Result<ModelConfig> ModelConfig::parse(std::string_view text, std::string_view name) {
  return from_json(TROUPE_TRY(json::parse(text, name)), name);
}

json::Object ModelConfig::to_json() const {
  json::Object out = source;
  if (!out.contains("architectures")) out["architectures"] = json::Array{"LlamaForCausalLM"};
  // A key that the source leaves to its default stays out.
  const auto set = [&](std::string_view key, std::int64_t value, std::int64_t fallback) {
    if (out.contains(key) || value != fallback) out[key] = value;
  };
  out["model_type"] = model_type;
  out["vocab_size"] = vocab_size;
  out["hidden_size"] = hidden_size;
  out["intermediate_size"] = intermediate_size;
  out["num_hidden_layers"] = num_hidden_layers;
  out["num_attention_heads"] = num_attention_heads;
  set("num_key_value_heads", num_key_value_heads, num_attention_heads);
  if (head_dim * num_attention_heads != hidden_size) out["head_dim"] = head_dim;
  set("max_position_embeddings", max_position_embeddings, 2048);
  if (out.contains("rms_norm_eps") || rms_norm_eps != 1e-6) out["rms_norm_eps"] = rms_norm_eps;
  if (out.contains("tie_word_embeddings") || tie_word_embeddings)
    out["tie_word_embeddings"] = tie_word_embeddings;
  if (!out.contains("rope_theta") && !out.contains("rope_parameters") && rope_theta != 10000.0)
    out["rope_theta"] = rope_theta;
  if (!out.contains("torch_dtype") && !out.contains("dtype")) out["torch_dtype"] = "float32";
  return out;
}

}  // namespace troupe::train

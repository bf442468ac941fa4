#include "train/model/rope_config.h"

#include <cmath>

namespace troupe::train {
namespace {

using Kind = RopeScaling::Kind;

// Reads numbers of the object under `key`, whose failures name both.
class RopeReader {
 public:
  RopeReader(ConfigReader& outer, std::string_view key, const json::Value& value)
      : outer_(outer), key_(key), reader_(value, key) {}
  ~RopeReader() {
    if (reader_.status().ok()) return;
    if (reader_.status().code() == Code::kUnsupported)
      outer_.refuse("{}", reader_.status().message());
    else
      outer_.fail("{}", reader_.status().message());
  }
  ConfigReader* operator->() { return &reader_; }

 private:
  ConfigReader& outer_;
  std::string_view key_;
  ConfigReader reader_;
};

std::string type_of(const json::Value& value) {
  for (const std::string_view key : {"rope_type", "type"})
    if (const auto named = json::find_string(value, key)) return *named;
  return "default";
}

void read_llama3(RopeReader& reader, RopeScaling& scaling) {
  reader->number("low_freq_factor", scaling.low_freq_factor);
  reader->number("high_freq_factor", scaling.high_freq_factor);
  if (scaling.low_freq_factor <= 0 || scaling.high_freq_factor <= scaling.low_freq_factor)
    reader->fail("needs 0 < low_freq_factor < high_freq_factor");
}

double magnitude(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// A zero counts as absent where transformers tests for truth.
void read_yarn(RopeReader& reader, const ModelConfig& config, RopeScaling& scaling) {
  if (!reader->has("factor"))
    scaling.factor = static_cast<double>(config.max_position_embeddings) /
                     static_cast<double>(scaling.original_max_position_embeddings);
  double fast = 0, slow = 0, mscale = 0, mscale_all_dim = 0;
  reader->number("beta_fast", fast);
  reader->number("beta_slow", slow);
  reader->number("mscale", mscale);
  reader->number("mscale_all_dim", mscale_all_dim);
  reader->boolean("truncate", scaling.truncate);
  if (fast != 0) scaling.beta_fast = fast;
  if (slow != 0) scaling.beta_slow = slow;
  if (scaling.beta_fast <= scaling.beta_slow) reader->fail("needs beta_slow < beta_fast");
  scaling.attention_factor =
      mscale != 0 && mscale_all_dim != 0
          ? magnitude(scaling.factor, mscale) / magnitude(scaling.factor, mscale_all_dim)
          : magnitude(scaling.factor, 1.0);
  reader->number("attention_factor", scaling.attention_factor);
  if (scaling.attention_factor <= 0) reader->fail("needs attention_factor > 0");
}

void read_scaling(ConfigReader& outer, RopeReader& reader, const std::string& type,
                  const ModelConfig& config, RopeScaling& scaling) {
  if (type == "default") return;
  if (type == "linear")
    scaling.kind = Kind::kLinear;
  else if (type == "llama3")
    scaling.kind = Kind::kLlama3;
  else if (type == "yarn")
    scaling.kind = Kind::kYarn;
  else
    return reader->refuse("type {} is not supported; use default, linear, llama3 or yarn", type);
  scaling.original_max_position_embeddings = config.max_position_embeddings;
  reader->size("original_max_position_embeddings", scaling.original_max_position_embeddings, false);
  // Beside the object it goes before the one in it.
  outer.size("original_max_position_embeddings", scaling.original_max_position_embeddings, false);
  if (!reader->has("factor") && scaling.kind != Kind::kYarn) reader->fail("factor is missing");
  reader->number("factor", scaling.factor);
  if (scaling.kind == Kind::kLlama3) read_llama3(reader, scaling);
  if (scaling.kind == Kind::kYarn) read_yarn(reader, config, scaling);
  if (reader->status().ok() && scaling.factor < 1.0)
    reader->fail("needs factor ≥ 1, not {}", scaling.factor);
}

void check_rope(ConfigReader& reader, const Rope& rope, double partial) {
  if (rope.theta <= 0) reader.fail("rope_theta must be positive");
  if (partial != 1.0)
    reader.refuse("partial_rotary_factor={} is not supported; use a model that rotates whole heads",
                  partial);
}

// One object with all that is to know of a rotation.
void read_object(ConfigReader& reader, std::string_view key, const json::Value& value,
                 const ModelConfig& config, Rope& rope, double& partial) {
  if (!value.is_object()) return reader.fail("{} must be an object or null", key);
  if (value.get_object().empty()) return;
  RopeReader inner(reader, key, value);
  inner->number("rope_theta", rope.theta);
  inner->number("partial_rotary_factor", partial);
  read_scaling(reader, inner, type_of(value), config, rope.scaling);
}

}  // namespace

void read_rope(ConfigReader& reader, ModelConfig& config) {
  reader.number("rope_theta", config.rope.theta);
  double partial = 1.0;
  reader.number("partial_rotary_factor", partial);
  // rope_scaling goes before rope_parameters unless it is null or empty.
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    if (!reader.has(key)) continue;
    const json::Value& value = *json::find(reader.value(), key);
    read_object(reader, key, value, config, config.rope, partial);
    if (!value.is_object() || !value.get_object().empty()) break;
  }
  check_rope(reader, config.rope, partial);
}

void read_rope_by_layer_type(ConfigReader& reader, ModelConfig& config) {
  if (!reader.has("rope_parameters")) {
    read_rope(reader, config);
    reader.number("rope_local_base_freq", config.window_rope->theta);
    return check_rope(reader, *config.window_rope, 1.0);
  }
  const json::Value& types = *json::find(reader.value(), "rope_parameters");
  const auto read = [&](const char* type, Rope& rope) {
    double partial = 1.0;
    const json::Value* value = json::find(types, type);
    if (value && !value->is_null())
      read_object(reader, fmt::format("rope_parameters.{}", type), *value, config, rope, partial);
    check_rope(reader, rope, partial);
  };
  // Neither would give both the defaults, which are no rotation that the file asked for.
  if (!types.is_object() ||
      (!json::find(types, "full_attention") && !json::find(types, "sliding_attention")))
    return reader.fail(
        "rope_parameters must have an object for full_attention and one for sliding_attention");
  read("full_attention", config.rope);
  read("sliding_attention", *config.window_rope);
}

}  // namespace troupe::train

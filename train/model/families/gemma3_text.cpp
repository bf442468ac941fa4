#include <fmt/format.h>

#include "train/model/families/gemma.h"
#include "train/model/rope_config.h"

namespace troupe::train {
namespace {

// Of sliding_window_pattern layers the last has no window.
constexpr std::int64_t kWindowPattern = 6;

// transformers 5 writes the second name.
constexpr std::string_view kPatternKeys[] = {"sliding_window_pattern", "_sliding_window_pattern"};

void read_windows(ConfigReader& reader, ModelConfig& config) {
  read_sliding_window(reader, config);
  // Layers with a window would keep their rotation without it, which no published model does.
  if (!config.sliding_window) return reader.fail("sliding_window must be an integer");
  if (reader.has("layer_types")) return read_layer_types(reader, config);
  std::int64_t pattern = kWindowPattern;
  for (const std::string_view key : kPatternKeys) reader.size(key, pattern, false);
  for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    config.windowed_layers.push_back((layer + 1) % pattern != 0);
}

void refuse_number(ConfigReader& reader, std::string_view key) {
  if (reader.has(key)) reader.refuse("{} is not supported; use a model without it", key);
}

void read_gemma3_text(ConfigReader& reader, ModelConfig& config) {
  read_gemma_parts(reader, config);
  refuse_number(reader, "attn_logit_softcapping");
  refuse_number(reader, "final_logit_softcapping");
  config.qk_norm = config.post_norms = true;
  config.query_scalar = 256.0;
  reader.number("query_pre_attn_scalar", *config.query_scalar);
  if (*config.query_scalar == 0) reader.fail("query_pre_attn_scalar must be positive");
  config.rope.theta = 1e6;
  config.window_rope.emplace();
  read_rope_by_layer_type(reader, config);
  read_windows(reader, config);
}

LayerNames gemma3_layer_names(const ModelConfig& config, std::int64_t layer) {
  LayerNames names = llama_layer_names(config, layer);
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  names.post_attention_norm = prefix + "post_attention_layernorm";
  names.mlp_norm = prefix + "pre_feedforward_layernorm";
  names.post_mlp_norm = prefix + "post_feedforward_layernorm";
  return names;
}

// The published files' names first, then those that transformers 5 writes.
constexpr std::string_view kPrefixes[] = {"language_model.model.", "model.language_model."};
constexpr std::string_view kOthers[] = {"vision_tower.", "multi_modal_projector.",
                                        "model.vision_tower.", "model.multi_modal_projector."};

}  // namespace

const ModelFamily& gemma3_text_family() {
  static const ModelFamily kGemma3Text{.model_type = "gemma3_text",
                                       .architecture = "Gemma3ForCausalLM",
                                       .prefixes_in_wrappers = kPrefixes,
                                       .others_in_wrappers = kOthers,
                                       .vocab_size = 262208,
                                       .num_attention_heads = 8,
                                       .max_position_embeddings = 131072,
                                       .num_key_value_heads = 4,
                                       .head_dim = 256,
                                       .tie_word_embeddings = true,
                                       .bos_token_id = 2,
                                       .eos_token_id = 1,
                                       .read = read_gemma3_text,
                                       .layer_names = gemma3_layer_names};
  return kGemma3Text;
}

}  // namespace troupe::train

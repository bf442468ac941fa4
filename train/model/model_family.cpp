#include "train/model/model_family.h"

#include <array>

#include <fmt/format.h>

#include "runtime/base/check.h"
#include "train/model/model_config.h"

namespace troupe::train {
namespace {

constexpr std::string_view kGpt2 = "gpt2";

constexpr ConfigKeys kGpt2Keys{.hidden_size = "n_embd",
                               .intermediate_size = "n_inner",
                               .num_hidden_layers = "n_layer",
                               .num_attention_heads = "n_head",
                               .max_position_embeddings = "n_positions",
                               .norm_eps = "layer_norm_epsilon",
                               .activation = "activation_function"};

// transformers/models/*/configuration_*.py, version 5.
constexpr std::array kFamilies = {
    ModelFamily{.model_type = "llama",
                .architecture = "LlamaForCausalLM",
                .base_prefix = "model.",
                .keys = {},
                .max_position_embeddings = 2048,
                .num_key_value_heads = std::nullopt,
                .head_dim = std::nullopt,
                .bos_token_id = 1,
                .eos_token_id = 2},
    ModelFamily{.model_type = "mistral",
                .architecture = "MistralForCausalLM",
                .base_prefix = "model.",
                .keys = {},
                .max_position_embeddings = 131072,
                .num_key_value_heads = 8,
                .head_dim = std::nullopt,
                .bos_token_id = 1,
                .eos_token_id = 2},
    ModelFamily{.model_type = "qwen2",
                .architecture = "Qwen2ForCausalLM",
                .base_prefix = "model.",
                .keys = {},
                .max_position_embeddings = 32768,
                .num_key_value_heads = 32,
                .head_dim = std::nullopt,
                .bos_token_id = std::nullopt,
                .eos_token_id = std::nullopt},
    ModelFamily{.model_type = "qwen3",
                .architecture = "Qwen3ForCausalLM",
                .base_prefix = "model.",
                .keys = {},
                .max_position_embeddings = 32768,
                .num_key_value_heads = 32,
                .head_dim = 128,
                .bos_token_id = std::nullopt,
                .eos_token_id = std::nullopt},
    ModelFamily{.model_type = kGpt2,
                .architecture = "GPT2LMHeadModel",
                .base_prefix = "transformer.",
                .keys = kGpt2Keys,
                .max_position_embeddings = 1024,
                .norm_eps = 1e-5,
                .num_key_value_heads = std::nullopt,
                .head_dim = std::nullopt,
                .tie_word_embeddings = true,
                .bos_token_id = 50256,
                .eos_token_id = 50256},
};

}  // namespace

const ModelFamily* find_model_family(std::string_view model_type) {
  for (const ModelFamily& family : kFamilies)
    if (family.model_type == model_type) return &family;
  return nullptr;
}

const ModelFamily& family_of(const ModelConfig& config) {
  const ModelFamily* family = find_model_family(config.model_type);
  TROUPE_CHECK(family, "{}", config.model_type);
  return *family;
}

std::string supported_model_types() {
  std::string list;
  for (const ModelFamily& family : kFamilies)
    list += (list.empty() ? "" : ", ") + std::string(family.model_type);
  return list;
}

BlockNames block_names(const ModelConfig& config, std::int64_t layer) {
  if (config.model_type == kGpt2) {
    const std::string prefix = fmt::format("transformer.h.{}.", layer);
    return {.attention_norm = prefix + "ln_1",
            .qkv = {prefix + "attn.c_attn"},
            .query_norm = {},
            .key_norm = {},
            .attention_output = prefix + "attn.c_proj",
            .mlp_norm = prefix + "ln_2",
            .mlp_inputs = {prefix + "mlp.c_fc"},
            .mlp_output = prefix + "mlp.c_proj"};
  }
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  return {.attention_norm = prefix + "input_layernorm",
          .qkv = {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
          .query_norm = config.qk_norm ? attention + "q_norm" : "",
          .key_norm = config.qk_norm ? attention + "k_norm" : "",
          .attention_output = attention + "o_proj",
          .mlp_norm = prefix + "post_attention_layernorm",
          .mlp_inputs = {mlp + "gate_proj", mlp + "up_proj"},
          .mlp_output = mlp + "down_proj"};
}

EndNames end_names(const ModelConfig& config) {
  EndNames names;
  if (config.model_type == kGpt2)
    names = {"transformer.wte", "transformer.wpe", "transformer.ln_f", "lm_head"};
  else
    names = {"model.embed_tokens", "", "model.norm", "lm_head"};
  if (config.tie_word_embeddings) names.output = names.token_embedding;
  return names;
}

std::optional<std::string> base_model_name(const ModelConfig& config, std::string_view name) {
  const std::string_view prefix = family_of(config).base_prefix;
  if (!name.starts_with(prefix)) return std::nullopt;
  return std::string(name.substr(prefix.size()));
}

bool ignored_in_weights(const ModelConfig& config, std::string_view name) {
  if (config.tie_word_embeddings && name == "lm_head.weight") return true;
  if (config.model_type == kGpt2)  // the causal mask
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  return name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace troupe::train

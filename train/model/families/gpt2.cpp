#include <fmt/format.h>

#include "train/model/embedding.h"
#include "train/model/family_parts.h"
#include "train/model/mlp.h"
#include "train/model/norm.h"

namespace troupe::train {
namespace {

constexpr std::string_view kCausalMasks[] = {".attn.bias", ".attn.masked_bias"};

void read_gpt2(ConfigReader& reader, ModelConfig& config) {
  config.norm = &kLayerNorm;
  config.activation = &kGeluTanh;
  config.embedding = &kTokenAndPositionEmbedding;
  config.positions = PositionKind::kLearned;
  config.qkv_bias = config.attention_output_bias = config.mlp_bias = true;
  config.transposed_weights = true;
  config.scales_residual_weights = true;
  reader.boolean("scale_attn_weights", config.scale_by_head_dim);
  reader.boolean("scale_attn_by_inverse_layer_idx", config.scale_by_inverse_layer);
  bool cross_attention = false;
  reader.boolean("add_cross_attention", cross_attention);
  if (cross_attention)
    reader.refuse("add_cross_attention=true is not supported; use a decoder-only model");
  read_activation(reader, "activation_function", {"gelu_new"}, "use gelu_new");
  read_dropout(reader, config,
               {{"attn_pdrop", &config.attention_dropout, 0.1},
                {"embd_pdrop", &config.embedding_dropout, 0.1},
                {"resid_pdrop", &config.residual_dropout, 0.1}});
  refuse_sliding_window(reader, config);
}

LayerNames gpt2_block_names(const ModelConfig&, std::int64_t layer) {
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

EndNames gpt2_end_names() {
  return {"transformer.wte", "transformer.wpe", "transformer.ln_f", "lm_head"};
}

}  // namespace

const ModelFamily& gpt2_family() {
  static const ModelFamily kGpt2{.model_type = "gpt2",
                                 .architecture = "GPT2LMHeadModel",
                                 .base_prefix = "transformer.",
                                 .keys = {.hidden_size = "n_embd",
                                          .intermediate_size = "n_inner",
                                          .num_hidden_layers = "n_layer",
                                          .num_attention_heads = "n_head",
                                          .max_position_embeddings = "n_positions",
                                          .norm_eps = "layer_norm_epsilon"},
                                 .intermediate_factor = 4,
                                 .max_position_embeddings = 1024,
                                 .norm_eps = 1e-5,
                                 .tie_word_embeddings = true,
                                 .bos_token_id = 50256,
                                 .eos_token_id = 50256,
                                 .read = read_gpt2,
                                 .layer_names = gpt2_block_names,
                                 .end_names = gpt2_end_names,
                                 .saved_buffers = kCausalMasks};
  return kGpt2;
}

}  // namespace troupe::train

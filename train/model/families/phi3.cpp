#include <fmt/format.h>

#include "train/model/family_parts.h"
#include "train/model/rope_config.h"

namespace troupe::train {
namespace {

void read_phi3(ConfigReader& reader, ModelConfig& config) {
  refuse_true(reader, config, "attention_bias");
  refuse_true(reader, config, "mlp_bias");
  read_activation(reader, "hidden_act", {"silu", "swish"}, "phi3 models use silu");
  read_dropout(reader, config,
               {{"attention_dropout", &config.attention_dropout, 0.0},
                {"resid_pdrop", &config.residual_dropout, 0.0}});
  read_rope(reader, config);
  // Older files of this family write "yarn" or "su" for longrope.
  if (config.rope.scaling.kind == RopeScaling::Kind::kYarn) {
    reader.refuse(
        "rope type yarn, which is longrope in phi3 models, is not supported; use a model "
        "of 4096 positions");
  }
  if (reader.has("sliding_window")) read_window_of_all_layers(reader, config);
}

// One product for queries, keys and values, and one for the gate and what it scales.
LayerNames phi3_layer_names(const ModelConfig& config, std::int64_t layer) {
  LayerNames names = llama_layer_names(config, layer);
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  names.qkv = {prefix + "self_attn.qkv_proj"};
  names.mlp_inputs = {prefix + "mlp.gate_up_proj"};
  return names;
}

}  // namespace

const ModelFamily& phi3_family() {
  static const ModelFamily kPhi3{.model_type = "phi3",
                                 .architecture = "Phi3ForCausalLM",
                                 .max_position_embeddings = 4096,
                                 .norm_eps = 1e-5,
                                 .bos_token_id = 1,
                                 .eos_token_id = 32000,
                                 .read = read_phi3,
                                 .layer_names = phi3_layer_names};
  return kPhi3;
}

}  // namespace troupe::train

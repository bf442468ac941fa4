#include "train/model/family_parts.h"

namespace troupe::train {

const ModelFamily& qwen3_family() {
  static const ModelFamily kQwen3{.model_type = "qwen3",
                                  .architecture = "Qwen3ForCausalLM",
                                  .max_position_embeddings = 32768,
                                  .num_key_value_heads = 32,
                                  .head_dim = 128,
                                  .read = [](ConfigReader& reader, ModelConfig& config) {
                                    config.qk_norm = true;
                                    read_attention_bias(reader, config);
                                    refuse_true(reader, config, "mlp_bias");
                                    read_llama_like(reader, config);
                                    read_windowed_layers(reader, config);
                                  }};
  return kQwen3;
}

}  // namespace troupe::train

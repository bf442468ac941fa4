#include "train/model/family_parts.h"

namespace troupe::train {

const ModelFamily& qwen2_family() {
  static const ModelFamily kQwen2{.model_type = "qwen2",
                                  .architecture = "Qwen2ForCausalLM",
                                  .max_position_embeddings = 32768,
                                  .num_key_value_heads = 32,
                                  .read = [](ConfigReader& reader, ModelConfig& config) {
                                    config.qkv_bias = true;
                                    refuse_true(reader, config, "attention_bias");
                                    refuse_true(reader, config, "mlp_bias");
                                    read_llama_like(reader, config);
                                    read_windowed_layers(reader, config);
                                  }};
  return kQwen2;
}

}  // namespace troupe::train

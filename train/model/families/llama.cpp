#include "train/model/family_parts.h"

namespace troupe::train {

const ModelFamily& llama_family() {
  static const ModelFamily kLlama{.model_type = "llama",
                                  .architecture = "LlamaForCausalLM",
                                  .max_position_embeddings = 2048,
                                  .bos_token_id = 1,
                                  .eos_token_id = 2,
                                  .read = [](ConfigReader& reader, ModelConfig& config) {
                                    read_attention_bias(reader, config);
                                    reader.boolean("mlp_bias", config.mlp_bias);
                                    read_llama_like(reader, config);
                                    refuse_sliding_window(reader, config);
                                  }};
  return kLlama;
}

}  // namespace troupe::train

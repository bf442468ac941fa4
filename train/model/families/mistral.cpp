#include "train/model/family_parts.h"

namespace troupe::train {

const ModelFamily& mistral_family() {
  static const ModelFamily kMistral{
      .model_type = "mistral",
      .architecture = "MistralForCausalLM",
      .max_position_embeddings = 131072,
      .num_key_value_heads = 8,
      .bos_token_id = 1,
      .eos_token_id = 2,
      .read = [](ConfigReader& reader, ModelConfig& config) {
        refuse_true(reader, config, "attention_bias");
        refuse_true(reader, config, "mlp_bias");
        read_llama_like(reader, config);
        read_window_of_all_layers(reader, config);
        if (reader.has("layer_types"))
          reader.refuse("layer_types is not supported for mistral; use a model without it");
      }};
  return kMistral;
}

}  // namespace troupe::train

#pragma once
// A model whose sizes the planning tests count with.

#include "train/model/model_config.h"

namespace troupe::train {

inline ModelConfig small_model() {
  ModelConfig model;
  model.vocab_size = 512;
  model.hidden_size = 64;
  model.intermediate_size = 128;
  model.num_hidden_layers = 2;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 2;
  model.head_dim = 16;
  return model;
}

}  // namespace troupe::train

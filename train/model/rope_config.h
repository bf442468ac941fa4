#pragma once
// The rotary keys of config.json. Private to this folder.

#include "train/model/config_reader.h"
#include "train/model/model_config.h"

namespace troupe::train {

// Sets config.rope. Both shapes of the keys are understood: rope_theta with rope_scaling, and
// transformers 5's rope_parameters with all in it. Needs config.max_position_embeddings.
void read_rope(ConfigReader& reader, ModelConfig& config);
// config.rope and config.window_rope of models whose windowed layers rotate otherwise. Both shapes:
// rope_theta with rope_scaling, which are of the layers without a window, and rope_local_base_freq;
// or an object in rope_parameters for each of full_attention and sliding_attention. Without a key
// the two keep their theta.
void read_rope_by_layer_type(ConfigReader& reader, ModelConfig& config);

}  // namespace troupe::train

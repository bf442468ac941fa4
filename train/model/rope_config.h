#pragma once
// The rotary keys of config.json. Private to this folder.

#include "train/model/config_reader.h"
#include "train/model/model_config.h"

namespace troupe::train {

// Sets rope_theta and rope_scaling. Both shapes of the keys are understood: rope_theta with
// rope_scaling, and transformers 5's rope_parameters with all in it. Needs
// config.max_position_embeddings.
void read_rope(ConfigReader& reader, ModelConfig& config);

}  // namespace troupe::train

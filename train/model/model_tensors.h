#pragma once
// The tensors of a model, unit by unit, as its family's modules have them in HF's files.

#include <vector>

#include "train/model/model_config.h"
#include "train/model/parameter_layout.h"

namespace troupe::train {

// The embedding, the layers, the head, in forward order. With tied embeddings the head has the
// final norm only, and the model uses unit 0 for the logits too.
std::vector<UnitSpec> model_tensors(const ModelConfig& config);

}  // namespace troupe::train

#pragma once
// The names that files of weights have for a model's tensors.

#include <string>
#include <string_view>

#include "train/checkpoint/tensor_reader.h"
#include "train/model/model_config.h"

namespace troupe::train {

// The name under which `tensors` hold the parameter `name` of `config`: its own, or one of
// other_names(); its own where they hold none of them. unties_head: the head of `config` is a
// matrix of its own that begins as a copy of the embedding, and stands for it where the files have
// none.
std::string stored_name(const TensorReader& tensors, const ModelConfig& config,
                        std::string_view name, bool unties_head = false);

}  // namespace troupe::train

#pragma once
// Arithmetic of a micro-batch, for reports.

#include <cstdint>

#include "train/model/model_config.h"
#include "train/model/model_layout.h"

namespace troupe::train {

// Floating-point operations of one forward and backward pass over (rows, length) tokens: a
// multiplication and an addition count as two. Counted are the products with weights (logits of all
// tokens included) and attention's two products over the keys that a token sees: half of a causal
// square, less with a window. The backward pass counts twice the forward pass where everything is
// trained; else the gradients of activations from the first trained layer on, and those of trained
// weights. What is computed
// again (activation checkpointing, attention's scores) does not count, nor do norms, activations
// and gathers: the number people divide by the time to quote a model's FLOP/s.
double model_flops(const ModelConfig& config, const ModelLayout& layout, std::int64_t rows,
                   std::int64_t length);

}  // namespace troupe::train

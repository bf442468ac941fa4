#pragma once
// Rotary position tables.

#include <cstdint>
#include <span>
#include <vector>

#include "train/model/model_config.h"

namespace troupe::train {

// Angle per position of each pair of a head's halves: (head_dim / 2). The one place that knows the
// scaling rules; "llama3" as in HF's modeling_rope_utils: with λ = 2π/f, f/factor for λ >
// context/low, f for λ < context/high, and a linear blend between.
std::vector<float> rope_frequencies(const ModelConfig& config);

// Fills cosine and sine: (positions, head_dim / 2) each.
void fill_rope_tables(const ModelConfig& config, std::int64_t positions, std::span<float> cosine,
                      std::span<float> sine);

}  // namespace troupe::train

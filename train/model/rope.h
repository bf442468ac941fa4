#pragma once
// Rotary position tables.

#include <cstdint>
#include <span>
#include <vector>

#include "train/model/model_config.h"

namespace troupe::train {

// Angle per position of each pair of a head's halves: (head_dim / 2). The one place that knows the
// scaling rules, which are those of transformers' modeling_rope_utils. With f the unscaled
// frequency:
//   linear  f / factor
//   llama3  with λ = 2π/f: f/factor for λ > context/low, f for λ < context/high, a linear blend
//           between
//   yarn    f/factor and f blended by a ramp over the pairs, between the pairs that turn beta_slow
//           and beta_fast times in the original context
std::vector<float> rope_frequencies(const Rope& rope, std::int64_t head_dim);

// Fills cosine and sine, (positions, head_dim / 2) each, times yarn's attention factor.
void fill_rope_tables(const Rope& rope, std::int64_t head_dim, std::int64_t positions,
                      std::span<float> cosine, std::span<float> sine);

}  // namespace troupe::train

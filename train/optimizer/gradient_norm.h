#pragma once
// The global L2 norm of the gradients, tile by tile, and clipping.

#include <cstdint>
#include <optional>
#include <span>

namespace troupe::train {

// Σ x² of one tile, in double by fixed lanes. Not finite exactly when an element is not: squares of
// fp32 numbers do not overflow here.
double tile_sum_of_squares(std::span<const float> tile);

struct GradientNorm {
  double norm = 0.0;
  // The first tile with an element that is not finite; ParameterLayout::at_flat_offset names its
  // tensor.
  std::optional<std::int64_t> first_non_finite_tile;
};

// The norm of tiles whose sums are given by tile index, added in that order whoever computed them.
GradientNorm combine_tile_sums(std::span<const double> tile_sums);

// min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; 1 when max_norm is 0 (off).
float clip_coefficient(double norm, double max_norm);

}  // namespace troupe::train

#include "train/optimizer/gradient_norm.h"

#include <algorithm>
#include <cmath>

#include "train/tensor/vectorize.h"

namespace troupe::train {
namespace {

TROUPE_VECTORIZED
double sum_of_squares(const float* x, std::int64_t count) {
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] += static_cast<double>(x[i + lane]) * static_cast<double>(x[i + lane]);
  for (int lane = 0; i < count; ++i, ++lane)
    lanes[lane] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum_lanes(lanes);
}

}  // namespace

double tile_sum_of_squares(std::span<const float> tile) {
  return sum_of_squares(tile.data(), static_cast<std::int64_t>(tile.size()));
}

GradientNorm combine_tile_sums(std::span<const double> tile_sums) {
  GradientNorm result;
  double sum = 0.0;
  for (std::size_t tile = 0; tile < tile_sums.size(); ++tile) {
    sum += tile_sums[tile];
    if (!std::isfinite(tile_sums[tile]) && !result.first_non_finite_tile)
      result.first_non_finite_tile = static_cast<std::int64_t>(tile);
  }
  result.norm = std::sqrt(sum);
  return result;
}

float clip_coefficient(double norm, double max_norm) {
  if (max_norm <= 0.0) return 1.0f;
  return static_cast<float>(std::min(1.0, max_norm / (norm + 1e-6)));
}

}  // namespace troupe::train

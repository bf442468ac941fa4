#include <cmath>

#include "train/cpu/kernels.h"
#include "train/cpu/strip_sums.h"
#include "train/tensor/vectorize.h"

namespace troupe::train::kernels {
namespace {

TROUPE_INLINE float lane_sum(const float* x, std::int64_t count) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane];
  for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += x[i];
  return sum_lanes(lanes);
}

// Σ (x − mean)²: a second pass over the row, since E[x²] − mean² cancels.
TROUPE_INLINE float lane_sum_of_squares(const float* x, float mean, std::int64_t count) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) {
      const float d = x[i + lane] - mean;
      lanes[lane] += d * d;
    }
  for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += (x[i] - mean) * (x[i] - mean);
  return sum_lanes(lanes);
}

TROUPE_INLINE void standardize(const float* x, const float* weight, const float* bias, float mean,
                               float rstd, float* y, std::int64_t width) {
  for (std::int64_t c = 0; c < width; ++c) y[c] = (x[c] - mean) * rstd * weight[c] + bias[c];
}

}  // namespace

TROUPE_VECTORIZED
void layer_norm_rows(const float* x, const float* weight, const float* bias, float* y, float* mean,
                     float* rstd, std::int64_t rows, std::int64_t width, float eps) {
  const auto count = static_cast<float>(width);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* x_row = x + row * width;
    mean[row] = lane_sum(x_row, width) / count;
    rstd[row] = 1.0f / std::sqrt(lane_sum_of_squares(x_row, mean[row], width) / count + eps);
    standardize(x_row, weight, bias, mean[row], rstd[row], y + row * width, width);
  }
}

TROUPE_VECTORIZED
void layer_norm_apply_rows(const float* x, const float* weight, const float* bias,
                           const float* mean, const float* rstd, float* y, std::int64_t rows,
                           std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row)
    standardize(x + row * width, weight, bias, mean[row], rstd[row], y + row * width, width);
}

// With n = (x − mean)·rstd and g = dy·w: dx = rstd·(g − mean(g) − n·mean(g·n)).
TROUPE_VECTORIZED
void layer_norm_backward_rows(const float* dy, const float* x, const float* weight,
                              const float* mean, const float* rstd, float* dx, std::int64_t rows,
                              std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* dy_row = dy + row * width;
    const float* x_row = x + row * width;
    float* dx_row = dx + row * width;
    const float m = mean[row], r = rstd[row];
    float sums[kLanes] = {}, products[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane) {
        const float g = dy_row[i + lane] * weight[i + lane];
        sums[lane] += g;
        products[lane] += g * ((x_row[i + lane] - m) * r);
      }
    for (int lane = 0; i < width; ++i, ++lane) {
      const float g = dy_row[i] * weight[i];
      sums[lane] += g;
      products[lane] += g * ((x_row[i] - m) * r);
    }
    const float mean_g = sum_lanes(sums) / static_cast<float>(width);
    const float mean_gn = sum_lanes(products) / static_cast<float>(width);
    for (std::int64_t c = 0; c < width; ++c)
      dx_row[c] += (dy_row[c] * weight[c] - mean_g - (x_row[c] - m) * r * mean_gn) * r;
  }
}

TROUPE_VECTORIZED
void layer_norm_backward_columns(const float* dy, const float* x, const float* mean,
                                 const float* rstd, float* dweight, float* dbias, std::int64_t rows,
                                 std::int64_t width, std::int64_t columns) {
  StripSums weights(dweight, columns), biases(dbias, columns);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* dy_row = dy + row * width;
    const float* x_row = x + row * width;
    const float m = mean[row], r = rstd[row];
    weights.add(columns, [=](std::int64_t c) { return dy_row[c] * ((x_row[c] - m) * r); });
    biases.add(columns, [=](std::int64_t c) { return dy_row[c]; });
  }
  weights.store(dweight, columns);
  biases.store(dbias, columns);
}

TROUPE_VECTORIZED
void add_column_sums(const float* x, std::int64_t stride, float* sums, std::int64_t rows,
                     std::int64_t columns) {
  StripSums strip(sums, columns);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* source = x + row * stride;
    strip.add(columns, [=](std::int64_t c) { return source[c]; });
  }
  strip.store(sums, columns);
}

}  // namespace troupe::train::kernels

// RMS norms over heads that lie side by side in a row.

#include <cmath>

#include "train/cpu/kernels.h"
#include "train/cpu/strip_sums.h"
#include "train/tensor/vectorize.h"

namespace troupe::train::kernels {

namespace {

TROUPE_INLINE float mean_of_squares(const float* x, std::int64_t count) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += x[i] * x[i];
  return sum_lanes(lanes) / static_cast<float>(count);
}

}  // namespace

TROUPE_VECTORIZED
void head_norm_rows(const float* x, std::int64_t x_stride, const float* weight, float* y,
                    std::int64_t y_stride, float* rstd, std::int64_t rows, std::int64_t heads,
                    std::int64_t head_dim, float eps) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const float* from = x + row * x_stride + head * head_dim;
      float* to = y + row * y_stride + head * head_dim;
      const float r = 1.0f / std::sqrt(mean_of_squares(from, head_dim) + eps);
      rstd[row * heads + head] = r;
      for (std::int64_t c = 0; c < head_dim; ++c) to[c] = (from[c] * r) * weight[c];
    }
  }
}

// With r = rstd and g = dy·w: dx = r·g − x·r³·mean(g·x), in place of dy.
TROUPE_VECTORIZED
void head_norm_backward_rows(float* dy, std::int64_t stride, const float* x, std::int64_t x_stride,
                             const float* weight, const float* rstd, std::int64_t rows,
                             std::int64_t heads, std::int64_t head_dim) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      float* d = dy + row * stride + head * head_dim;
      const float* x_head = x + row * x_stride + head * head_dim;
      const float r = rstd[row * heads + head];
      float lanes[kLanes] = {};
      std::int64_t i = 0;
      for (; i + kLanes <= head_dim; i += kLanes)
        for (int lane = 0; lane < kLanes; ++lane)
          lanes[lane] += d[i + lane] * weight[i + lane] * x_head[i + lane];
      for (int lane = 0; i < head_dim; ++i, ++lane) lanes[lane] += d[i] * weight[i] * x_head[i];
      const float mean = sum_lanes(lanes) / static_cast<float>(head_dim) * r * r;
      for (std::int64_t c = 0; c < head_dim; ++c) d[c] = (d[c] * weight[c] - x_head[c] * mean) * r;
    }
  }
}

TROUPE_VECTORIZED
void head_norm_backward_columns(const float* dy, std::int64_t stride, const float* x,
                                std::int64_t x_stride, const float* rstd, float* dweight,
                                std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                                std::int64_t columns) {
  StripSums sums(dweight, columns);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const float* d = dy + row * stride + head * head_dim;
      const float* x_head = x + row * x_stride + head * head_dim;
      const float r = rstd[row * heads + head];
      sums.add(columns, [=](std::int64_t c) { return d[c] * (x_head[c] * r); });
    }
  }
  sums.store(dweight, columns);
}

}  // namespace troupe::train::kernels

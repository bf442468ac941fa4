#include <cmath>

#include "train/cpu/kernels.h"
#include "train/cpu/strip_sums.h"
#include "train/tensor/vectorize.h"

namespace troupe::train::kernels {
namespace {

TROUPE_INLINE float sum_of_products(const float* a, const float* b, std::int64_t count) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += a[i] * b[i];
  return sum_lanes(lanes);
}

TROUPE_INLINE float sum_of_products(const float* a, const float* b, const float* c,
                                    std::int64_t count) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] += a[i + lane] * b[i + lane] * c[i + lane];
  for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += a[i] * b[i] * c[i];
  return sum_lanes(lanes);
}

TROUPE_INLINE float reciprocal_rms(const float* x, std::int64_t width, float eps) {
  return 1.0f / std::sqrt(sum_of_products(x, x, width) / static_cast<float>(width) + eps);
}

// The cast to the input's type lies between the two products in HF's RMSNorm; in fp32 it is
// nothing.
TROUPE_INLINE void apply(const float* x, const float* weight, float rstd, float* y,
                         std::int64_t width) {
  for (std::int64_t c = 0; c < width; ++c) y[c] = (x[c] * rstd) * weight[c];
}

}  // namespace

TROUPE_VECTORIZED
void rms_norm_rows(const float* x, const float* weight, float* y, float* rstd, std::int64_t rows,
                   std::int64_t width, float eps) {
  for (std::int64_t row = 0; row < rows; ++row) {
    rstd[row] = reciprocal_rms(x + row * width, width, eps);
    apply(x + row * width, weight, rstd[row], y + row * width, width);
  }
}

TROUPE_VECTORIZED
void residual_rms_norm_rows(const float* x, const float* delta, const float* weight, float* sum,
                            float* y, float* rstd, std::int64_t rows, std::int64_t width,
                            float eps) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t at = row * width;
    for (std::int64_t c = 0; c < width; ++c) sum[at + c] = x[at + c] + delta[at + c];
    rstd[row] = reciprocal_rms(sum + at, width, eps);
    apply(sum + at, weight, rstd[row], y + at, width);
  }
}

TROUPE_VECTORIZED
void rms_norm_apply_rows(const float* x, const float* weight, const float* rstd, float* y,
                         std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row)
    apply(x + row * width, weight, rstd[row], y + row * width, width);
}

// With r = rstd and g = dy·w: dx = r·g − x·r³·mean(g·x).
TROUPE_VECTORIZED
void rms_norm_backward_rows(const float* dy, const float* x, const float* weight, const float* rstd,
                            float* dx, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* dy_row = dy + row * width;
    const float* x_row = x + row * width;
    float* dx_row = dx + row * width;
    const float r = rstd[row];
    const float mean =
        sum_of_products(dy_row, weight, x_row, width) / static_cast<float>(width) * r * r;
    for (std::int64_t c = 0; c < width; ++c)
      dx_row[c] += (dy_row[c] * weight[c] - x_row[c] * mean) * r;
  }
}

TROUPE_VECTORIZED
void rms_norm_backward_columns(const float* dy, const float* x, const float* rstd, float* dweight,
                               std::int64_t rows, std::int64_t width, std::int64_t columns) {
  StripSums sums(dweight, columns);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* dy_row = dy + row * width;
    const float* x_row = x + row * width;
    const float r = rstd[row];
    sums.add(columns, [=](std::int64_t c) { return dy_row[c] * (x_row[c] * r); });
  }
  sums.store(dweight, columns);
}

}  // namespace troupe::train::kernels

#include <bit>
#include <cmath>
#include <vector>

#include "train/cpu/exp.h"
#include "train/cpu/kernels.h"
#include "train/cpu/operator_class.h"
#include "train/cpu/strip_sums.h"
#include "train/cpu/vectors.h"
#include "train/tensor/vectorize.h"

namespace troupe::train::kernels {

TROUPE_VECTORIZED
void add(const float* a, const float* b, float* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

TROUPE_VECTORIZED
void scale(float* x, float factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) x[i] *= factor;
}

TROUPE_VECTORIZED
void rope_row(float* x, const float* cosine, const float* sine, std::int64_t heads,
              std::int64_t head_dim, float sine_sign) {
  const std::int64_t half = head_dim / 2;
  // By eights: heads of 48 and 80 have halves that fill no whole vector of 16.
  std::int64_t i = 0;
  for (; i + 8 <= half; i += 8) {
    Floats8 c, s, a, b;
    load_vector(cosine + i, c);
    load_vector(sine + i, s);
    s *= sine_sign;
    for (std::int64_t head = 0; head < heads; ++head) {
      float* low = x + head * head_dim + i;
      load_vector(low, a);
      load_vector(low + half, b);
      store_vector(a * c - b * s, low);
      store_vector(b * c + a * s, low + half);
    }
  }
  for (; i < half; ++i) {
    const float s = sine[i] * sine_sign;
    for (std::int64_t head = 0; head < heads; ++head) {
      float* low = x + head * head_dim + i;
      const float a = low[0], b = low[half];
      low[0] = a * cosine[i] - b * s;
      low[half] = b * cosine[i] + a * s;
    }
  }
}

// Both passes fetch the next row while they are at one: gate and up are streams that end with the
// row, where the processor's own prefetching begins anew.
TROUPE_VECTORIZED
void swiglu_rows(const float* gate_up, float* act, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* gate = gate_up + row * 2 * width;
    const float* up = gate + width;
    float* out = act + row * width;
    // Rounded as in swiglu_backward_rows.
    std::int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      __builtin_prefetch(gate + i + 2 * width);
      __builtin_prefetch(up + i + 2 * width);
      __builtin_prefetch(out + i + width, 1);
      Floats16 g, u, e;
      load_vector(gate + i, g);
      load_vector(up + i, u);
      exp_vector(-g, e);
      store_vector(g * (1.0f / (1.0f + e)) * u, out + i);
    }
    for (; i < width; ++i) out[i] = gate[i] * (1.0f / (1.0f + fast_exp(-gate[i]))) * up[i];
  }
}

TROUPE_VECTORIZED
void swiglu_backward_rows(float* gate_up, const float* dact, float* act, std::int64_t rows,
                          std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row) {
    float* gate = gate_up + row * 2 * width;
    float* up = gate + width;
    const float* d = dact + row * width;
    float* out = act ? act + row * width : nullptr;
    std::int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      __builtin_prefetch(gate + i + 2 * width, 1);
      __builtin_prefetch(up + i + 2 * width, 1);
      __builtin_prefetch(d + i + width);
      Floats16 g, u, da, e;
      load_vector(gate + i, g);
      load_vector(up + i, u);
      load_vector(d + i, da);
      exp_vector(-g, e);
      const Floats16 sigmoid = 1.0f / (1.0f + e);
      const Floats16 silu = g * sigmoid;
      store_vector(da * u * (sigmoid * (1.0f + g * (1.0f - sigmoid))), gate + i);
      store_vector(da * silu, up + i);
      if (out) store_vector(silu * u, out + i);
    }
    for (; i < width; ++i) {
      const float g = gate[i], u = up[i], da = d[i];
      const float sigmoid = 1.0f / (1.0f + fast_exp(-g));
      const float silu = g * sigmoid;
      gate[i] = da * u * (sigmoid * (1.0f + g * (1.0f - sigmoid)));
      up[i] = da * silu;
      if (out) out[i] = silu * u;
    }
  }
}

TROUPE_VECTORIZED
void add_rows_by_id(const std::int32_t* ids, const float* dout, float* dweight, std::int64_t rows,
                    std::int64_t width, std::int64_t columns) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* __restrict source = dout + row * width;
    float* __restrict target = dweight + static_cast<std::int64_t>(ids[row]) * width;
    for (std::int64_t c = 0; c < columns; ++c) target[c] += source[c];
  }
}

TROUPE_VECTORIZED
void scale_row(float* x, float factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) x[i] *= factor;
}

TROUPE_VECTORIZED
float dot(const float* a, const float* b, std::int64_t count) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += a[i] * b[i];
  return sum_lanes(lanes);
}

namespace {

TROUPE_VECTORIZED
void scale_row_by(float* y, const float* factors, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) y[i] *= factors[i];
}

// sums[0 … columns) += a·b of all rows; pointers are at the first column of the strip.
TROUPE_VECTORIZED
void add_products_of_rows(const float* a, std::int64_t a_stride, const float* b,
                          std::int64_t b_stride, float* sums, std::int64_t rows,
                          std::int64_t columns) {
  StripSums strip(sums, columns);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float *left = a + row * a_stride, *right = b + row * b_stride;
    strip.add(columns, [&](std::int64_t c) TROUPE_INLINE_LAMBDA { return left[c] * right[c]; });
  }
  strip.store(sums, columns);
}

TROUPE_VECTORIZED
void add_scaled_row(float* y, const float* x, const float* factors, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) y[i] += factors[i] * x[i];
}

TROUPE_INLINE float widened(float value) { return value; }
TROUPE_INLINE float widened(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// ‖row + scale·update‖², of elements that lie side by side.
template <typename T>
TROUPE_INLINE float sum_of_squares(const T* row, const float* update, float scale,
                                   std::int64_t width) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = widened(row[i + lane]) + scale * update[i + lane];
      lanes[lane] += value * value;
    }
  for (int lane = 0; i < width; ++i, ++lane) {
    const float value = widened(row[i]) + scale * update[i];
    lanes[lane] += value * value;
  }
  return sum_lanes(lanes);
}
TROUPE_VECTORIZED
float squares_of_fp32(const float* row, const float* update, float scale, std::int64_t width) {
  return sum_of_squares(row, update, scale, width);
}
TROUPE_VECTORIZED
float squares_of_bf16(const std::uint16_t* row, const float* update, float scale,
                      std::int64_t width) {
  return sum_of_squares(row, update, scale, width);
}

}  // namespace
}  // namespace troupe::train::kernels

namespace troupe::train {

void CpuOperators::scale_columns(Elements y, std::int64_t stride, const float* factors,
                                 std::int64_t rows, std::int64_t width) {
  for_rows(rows, width, [&, y = y.fp32()](std::int64_t begin, std::int64_t n) {
    for (std::int64_t row = begin; row < begin + n; ++row)
      kernels::scale_row_by(y + row * stride, factors, width);
  });
}

void CpuOperators::add_column_products(ConstElements a, std::int64_t a_stride, ConstElements b,
                                       std::int64_t b_stride, float* sums, std::int64_t rows,
                                       std::int64_t width) {
  for_columns(width, [&, a = a.fp32(), b = b.fp32()](std::int64_t begin, std::int64_t n) {
    kernels::add_products_of_rows(a + begin, a_stride, b + begin, b_stride, sums + begin, rows, n);
  });
}

void CpuOperators::add_scaled_columns(Elements y, std::int64_t stride, ConstElements x,
                                      const float* factors, std::int64_t rows, std::int64_t width) {
  for_rows(rows, width, [&, y = y.fp32(), x = x.fp32()](std::int64_t begin, std::int64_t n) {
    for (std::int64_t row = begin; row < begin + n; ++row)
      kernels::add_scaled_row(y + row * stride, x + row * width, factors, width);
  });
}

void CpuOperators::magnitude_factors(ConstElements weight, std::int64_t row_stride,
                                     std::int64_t column_stride, const float* update, float scale,
                                     const float* magnitudes, float* factors,
                                     float* factors_less_one, float* inverse_norms,
                                     std::int64_t rows, std::int64_t width) {
  for_rows(rows, width, [&](std::int64_t begin, std::int64_t n) {
    // A row whose elements are apart is put together first.
    std::vector<float> gathered(column_stride == 1 ? 0 : static_cast<std::size_t>(width));
    for (std::int64_t row = begin; row < begin + n; ++row) {
      const ConstElements from = weight + row * row_stride;
      const bool bf16 = from.type == DType::kBF16;
      const auto* words = static_cast<const std::uint16_t*>(from.data);
      const auto* values = static_cast<const float*>(from.data);
      const float* added = update + row * width;
      float squares = 0;
      if (column_stride != 1) {
        for (std::int64_t i = 0; i < width; ++i)
          gathered[static_cast<std::size_t>(i)] =
              bf16 ? kernels::widened(words[i * column_stride]) : values[i * column_stride];
        squares = kernels::squares_of_fp32(gathered.data(), added, scale, width);
      } else {
        squares = bf16 ? kernels::squares_of_bf16(words, added, scale, width)
                       : kernels::squares_of_fp32(values, added, scale, width);
      }
      const float norm = std::sqrt(squares);
      factors[row] = magnitudes[row] / norm;
      factors_less_one[row] = factors[row] - 1.0f;
      inverse_norms[row] = 1.0f / norm;
    }
  });
}

}  // namespace troupe::train

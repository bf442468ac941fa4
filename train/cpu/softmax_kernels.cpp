#include <cmath>
#include <cstring>
#include <limits>

#include "train/cpu/exp.h"
#include "train/cpu/kernels.h"
#include "train/tensor/convert.h"
#include "train/tensor/vectorize.h"

namespace troupe::train::kernels {
namespace {

// For loops that keep nothing but a selection: as arrays of lanes, GCC 12 takes it apart into
// scalars, which took longer than the exponentials. (As wide as AVX2's: wider ones become scalars
// there.)
constexpr std::int64_t kHalf = kLanes / 2;
using Floats __attribute__((vector_size(kHalf * sizeof(float)))) = float;
using Integers __attribute__((vector_size(kHalf * sizeof(std::int32_t)))) = std::int32_t;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// The greatest element. A NaN may or may not show here; it does in the sum. (Eight vectors: one
// would wait for itself.)
TROUPE_INLINE float max_of(const float* x, std::int64_t count) {
  constexpr int kVectors = 8;
  Floats greatest[kVectors];
  for (Floats& some : greatest) some = Floats{} + kNothing;
  std::int64_t i = 0;
  for (; i + kVectors * kHalf <= count; i += kVectors * kHalf)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Floats some;
      std::memcpy(&some, x + i + v * kHalf, sizeof some);
      greatest[v] = some > greatest[v] ? some : greatest[v];
    }
  float lanes[kVectors * kHalf];
  std::memcpy(lanes, greatest, sizeof lanes);
  for (; i < count; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  float found = lanes[0];
  for (const float lane : lanes) found = lane > found ? lane : found;
  return found;
}

// x := exp(x·scale − shift); returns the sum. Fetches as much from `next` meanwhile.
TROUPE_INLINE float exp_and_sum(float* x, std::int64_t count, float scale, float shift,
                                const float* next) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    __builtin_prefetch(next + i, 0, 2);
    for (int lane = 0; lane < kLanes; ++lane) {
      const float e = fast_exp(x[i + lane] * scale - shift);
      x[i + lane] = e;
      lanes[lane] += e;
    }
  }
  for (int lane = 0; i < count; ++i, ++lane) {
    x[i] = fast_exp(x[i] * scale - shift);
    lanes[lane] += x[i];
  }
  return sum_lanes(lanes);
}

// Of columns of scores: each one's greatest among the keys [begin, end) that it sees, its first to
// its last.
TROUPE_INLINE void greatest_seen(const float* scores, const std::int32_t* first,
                                 const std::int32_t* last, std::int64_t begin, std::int64_t end,
                                 float* greatest) {
  Integers first_keys, last_keys;
  std::memcpy(&first_keys, first, sizeof first_keys);
  std::memcpy(&last_keys, last, sizeof last_keys);
  const Floats nothing = Floats{} + kNothing;
  Floats found = nothing;
  for (std::int64_t key = begin; key < end; ++key) {
    Floats some;
    std::memcpy(&some, scores + key * kQueryBlock, sizeof some);
    const Integers k = Integers{} + static_cast<std::int32_t>(key);
    const Floats begun = k >= first_keys ? some : nothing;
    const Floats seen = k <= last_keys ? begun : nothing;
    found = seen > found ? seen : found;
  }
  std::memcpy(greatest, &found, sizeof found);
}

TROUPE_INLINE void zero_outside(float* x, std::int64_t count, std::int64_t first,
                                std::int64_t end) {
  for (std::int64_t i = 0; i < first; ++i) x[i] = 0.0f;
  for (std::int64_t i = end; i < count; ++i) x[i] = 0.0f;
}

}  // namespace

TROUPE_VECTORIZED
float cross_entropy_row(float* logits, std::int32_t label, float scale, bool gradient,
                        std::int64_t classes, const float* next) {
  const float greatest = max_of(logits, classes);
  const float target = logits[label];
  const float sum = exp_and_sum(logits, classes, 1.0f, greatest, next);
  const float loss = std::log(sum) + greatest - target;
  if (!gradient) return loss;
  const float factor = scale / sum;
  for (std::int64_t i = 0; i < classes; ++i) logits[i] *= factor;
  logits[label] -= scale;
  return loss;
}

TROUPE_VECTORIZED_WORDS
float cross_entropy_row_bf16(float* logits, std::int32_t label, float scale,
                             std::uint16_t* gradient, std::int64_t classes) {
  float* __restrict x = logits;
  std::uint16_t* __restrict rounded = gradient;
  const float greatest = max_of(x, classes);
  const float target = x[label];
  const float sum = exp_and_sum(x, classes, 1.0f, greatest, x);
  const float factor = scale / sum;
  for (std::int64_t i = 0; i < classes; ++i) rounded[i] = float_to_bf16(x[i] * factor);
  rounded[label] = float_to_bf16(x[label] * factor - scale);
  return std::log(sum) + greatest - target;
}

TROUPE_VECTORIZED
float softmax_row(float* scores, std::int64_t count, std::int64_t first, std::int64_t end,
                  float scale, float* inverse_sum) {
  const float greatest = max_of(scores + first, end - first) * scale;
  const float sum = exp_and_sum(scores + first, end - first, scale, greatest, scores + first);
  zero_outside(scores, count, first, end);
  *inverse_sum = 1.0f / sum;
  return std::log(sum) + greatest;
}

TROUPE_VECTORIZED
void softmax_backward_row(float* scores, float* dscores, std::int64_t count, std::int64_t first,
                          std::int64_t end, float scale, float log_sum_exp, float delta) {
  float* __restrict p = scores;
  float* __restrict d = dscores;
  for (std::int64_t i = first; i < end; ++i) {
    p[i] = fast_exp(p[i] * scale - log_sum_exp);
    d[i] = p[i] * (d[i] - delta) * scale;
  }
  zero_outside(p, count, first, end);
  zero_outside(d, count, first, end);
}

TROUPE_VECTORIZED
void softmax_columns(float* scores, const KeyLimits& limits, std::int64_t column,
                     std::int64_t begin, std::int64_t end, float scale, float* inverse_sums,
                     float* log_sum_exp) {
  std::int32_t first[kLanes], last[kLanes];
  float greatest[kLanes], sums[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    first[lane] = limits.first[column + lane], last[lane] = limits.last[column + lane];
    sums[lane] = 0.0f;
  }
  for (const std::int64_t half : {std::int64_t{0}, kHalf})
    greatest_seen(scores + column + half, first + half, last + half, begin, end, greatest + half);
  for (int lane = 0; lane < kLanes; ++lane) greatest[lane] *= scale;
  for (std::int64_t key = begin; key < end; ++key) {
    float* x = scores + key * kQueryBlock + column;
    const auto k = static_cast<std::int32_t>(key);
    for (int lane = 0; lane < kLanes; ++lane) {
      const float e = fast_exp(x[lane] * scale - greatest[lane]);
      const float seen = (k >= first[lane]) & (k <= last[lane]) ? e : 0.0f;
      x[lane] = seen;
      sums[lane] += seen;
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    inverse_sums[lane] = 1.0f / sums[lane];
    log_sum_exp[lane] = std::log(sums[lane]) + greatest[lane];
  }
}

TROUPE_VECTORIZED
void softmax_backward_columns(float* scores, float* dscores, const KeyLimits& limits,
                              std::int64_t column, std::int64_t begin, std::int64_t end,
                              float scale, const float* log_sum_exp, const float* delta) {
  std::int32_t first[kLanes], last[kLanes];
  float lse[kLanes], deltas[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    first[lane] = limits.first[column + lane], last[lane] = limits.last[column + lane];
    lse[lane] = log_sum_exp[lane], deltas[lane] = delta[lane];
  }
  for (std::int64_t key = begin; key < end; ++key) {
    float* __restrict p = scores + key * kQueryBlock + column;
    float* __restrict d = dscores + key * kQueryBlock + column;
    const auto k = static_cast<std::int32_t>(key);
    for (int lane = 0; lane < kLanes; ++lane) {
      const float e = fast_exp(p[lane] * scale - lse[lane]);
      const float seen = (k >= first[lane]) & (k <= last[lane]) ? e : 0.0f;
      // A score outside was computed from whatever lies there: it must not become a NaN here.
      const float ds = seen * (d[lane] - deltas[lane]) * scale;
      p[lane] = seen;
      d[lane] = (k >= first[lane]) & (k <= last[lane]) ? ds : 0.0f;
    }
  }
}

TROUPE_VECTORIZED
void transpose_rows(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t width,
                    float* to, std::int64_t columns_of_to) {
  for (std::int64_t c = 0; c < width; ++c) {
    float* __restrict out = to + c * kQueryBlock;
    for (std::int64_t row = 0; row < rows; ++row) out[row] = from[row * stride + c];
    for (std::int64_t row = rows; row < columns_of_to; ++row) out[row] = 0.0f;
  }
}

}  // namespace troupe::train::kernels

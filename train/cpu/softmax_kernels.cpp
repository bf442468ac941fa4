#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "train/cpu/exp.h"
#include "train/cpu/kernels.h"
#include "train/cpu/vectors.h"
#include "train/tensor/convert.h"
#include "train/tensor/vectorize.h"

namespace troupe::train::kernels {
namespace {

using Integers8 = VectorOf<8>::Mask;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Selections are written in vectors: as arrays of lanes, GCC 12 takes them apart into scalars,
// which took longer than the exponentials. (As wide as AVX2's: wider ones become scalars there.)
TROUPE_INLINE void take_greater(const Floats8& some, Floats8& greatest) {
  greatest = some > greatest ? some : greatest;
}

// The greatest element. A NaN may or may not show here; it does in the sum. (Eight vectors: one
// would wait for itself.)
TROUPE_INLINE float max_of(const float* x, std::int64_t count) {
  constexpr std::int64_t kVectors = 8;
  const Floats8 nothing = Floats8{} + kNothing;
  if (count < 8) {
    float found = kNothing;
    for (std::int64_t i = 0; i < count; ++i) found = x[i] > found ? x[i] : found;
    return found;
  }
  Floats8 greatest[kVectors] = {nothing, nothing, nothing, nothing,
                                nothing, nothing, nothing, nothing};
  Floats8 some;
  std::int64_t i = 0;
  for (; i + kVectors * 8 <= count; i += kVectors * 8)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      load_vector(x + i + v * 8, some);
      take_greater(some, greatest[v]);
    }
  for (; i + 8 <= count; i += 8) {
    load_vector(x + i, some);
    take_greater(some, greatest[0]);
  }
  // The last eight, some of them again.
  load_vector(x + count - 8, some);
  take_greater(some, greatest[0]);
#pragma GCC unroll 3
  for (int width = kVectors / 2; width > 0; width /= 2)
#pragma GCC unroll 4
    for (int v = 0; v < width; ++v) take_greater(greatest[v + width], greatest[v]);
  const Floats8 found = greatest[0];
  take_greater(__builtin_shufflevector(found, found, 4, 5, 6, 7, 0, 1, 2, 3), greatest[0]);
  const Floats8 fours = greatest[0];
  take_greater(__builtin_shufflevector(fours, fours, 2, 3, 0, 1, 6, 7, 4, 5), greatest[0]);
  const Floats8 twos = greatest[0];
  take_greater(__builtin_shufflevector(twos, twos, 1, 0, 3, 2, 5, 4, 7, 6), greatest[0]);
  return greatest[0][0];
}

struct NothingToFetch {
  TROUPE_INLINE void operator()(std::int64_t) const {}
};

// x := exp(x·scale − shift); returns the sum. fetch(i) is called before each 16 elements, for what
// is wanted next.
template <typename Fetch = NothingToFetch>
TROUPE_INLINE float exp_and_sum(float* x, std::int64_t count, float scale, float shift,
                                const Fetch& fetch = {}) {
  Floats16 value, e, sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    fetch(i);
    load_vector(x + i, value);
    exp_vector(value * scale - shift, e);
    store_vector(e, x + i);
    sums += e;
  }
  float lanes[kLanes];
  store_vector(sums, lanes);
  if (i < count) {
    // As a vector, too, of which the first lanes count.
    float left[kLanes] = {};
    for (std::int64_t lane = 0; lane < count - i; ++lane) left[lane] = x[i + lane];
    load_vector(left, value);
    exp_vector(value * scale - shift, e);
    store_vector(e, left);
    for (int lane = 0; i < count; ++i, ++lane) {
      x[i] = left[lane];
      lanes[lane] += left[lane];
    }
  }
  return sum_lanes(lanes);
}

// Of columns of scores: each one's greatest among the keys [begin, end) that it sees, its first to
// its last.
TROUPE_INLINE void greatest_seen(const float* scores, const std::int32_t* first,
                                 const std::int32_t* last, std::int64_t begin, std::int64_t end,
                                 float* greatest) {
  Integers8 first_keys, last_keys;
  load_vector(first, first_keys);
  load_vector(last, last_keys);
  const Floats8 nothing = Floats8{} + kNothing;
  Floats8 found = nothing;
  for (std::int64_t key = begin; key < end; ++key) {
    Floats8 some;
    load_vector(scores + key * kQueryBlock, some);
    const Integers8 k = Integers8{} + static_cast<std::int32_t>(key);
    const Floats8 begun = k >= first_keys ? some : nothing;
    take_greater(k <= last_keys ? begun : nothing, found);
  }
  store_vector(found, greatest);
}

TROUPE_INLINE void zero_outside(float* x, std::int64_t count, std::int64_t first,
                                std::int64_t end) {
  for (std::int64_t i = 0; i < first; ++i) x[i] = 0.0f;
  for (std::int64_t i = end; i < count; ++i) x[i] = 0.0f;
}

}  // namespace

float entropy_of_softmax(std::span<const float> logits) {
  const float greatest = *std::max_element(logits.begin(), logits.end());
  double sum = 0, moment = 0;
  for (const float logit : logits) {
    const double less = static_cast<double>(logit) - greatest, power = std::exp(less);
    sum += power, moment += power * less;
  }
  return static_cast<float>(std::log(sum) - moment / sum);
}

TROUPE_VECTORIZED
float cross_entropy_row(float* logits, std::int32_t label, float scale, bool gradient,
                        std::int64_t classes, const float* next) {
  const float greatest = max_of(logits, classes);
  const float target = logits[label];
  const float sum =
      exp_and_sum(logits, classes, 1.0f, greatest,
                  [=](std::int64_t i) TROUPE_INLINE_LAMBDA { __builtin_prefetch(next + i, 0, 2); });
  const float loss = std::log(sum) + greatest - target;
  if (!gradient) return loss;
  const float factor = scale / sum;
  for (std::int64_t i = 0; i < classes; ++i) logits[i] *= factor;
  logits[label] -= scale;
  return loss;
}

float divergence_cross_entropy_row(float* logits, std::int32_t label, float* reference, float scale,
                                   float divergence, std::uint16_t* gradient,
                                   std::int64_t classes) {
  // Σ q·(log q − log p), of which log q − log p is the logits' difference and a constant.
  const double at_label = reference[label];
  std::vector<float> apart(static_cast<std::size_t>(classes));
  for (std::int64_t i = 0; i < classes; ++i)
    apart[static_cast<std::size_t>(i)] = reference[i] - logits[i];
  const double loss_difference = at_label - logits[label];
  const float loss = cross_entropy_row(logits, label, 1.0f, true, classes, logits);
  const float reference_loss = cross_entropy_row(reference, label, 1.0f, true, classes, reference);
  // Both are softmax − one-hot now.
  double moment = loss_difference;
  for (std::int64_t i = 0; i < classes; ++i)
    moment += double{reference[i]} * apart[static_cast<std::size_t>(i)];
  // log Σ exp of the logits less that of the reference's.
  const double sums = double{loss} - reference_loss - loss_difference;
  const float weight = std::exp(-loss);
  const float own = scale * (weight + divergence), others = scale * divergence;
  for (std::int64_t i = 0; i < classes; ++i) logits[i] = own * logits[i] - others * reference[i];
  if (gradient)
    for (std::int64_t i = 0; i < classes; ++i) gradient[i] = float_to_bf16(logits[i]);
  return loss * weight + divergence * static_cast<float>(moment + sums);
}

TROUPE_VECTORIZED_WORDS
float cross_entropy_row_bf16(float* logits, std::int32_t label, float scale,
                             std::uint16_t* gradient, std::int64_t classes, const float* next) {
  float* __restrict x = logits;
  std::uint16_t* __restrict rounded = gradient;
  const float greatest = max_of(x, classes);
  const float target = x[label];
  // The gradient's lines come, too: nothing else in this row waits for memory.
  const auto fetch = [=](std::int64_t i) TROUPE_INLINE_LAMBDA {
    __builtin_prefetch(next + i, 0, 2);
    __builtin_prefetch(gradient + i, 1, 2);
  };
  const float sum = exp_and_sum(x, classes, 1.0f, greatest, fetch);
  const float factor = scale / sum;
  for (std::int64_t i = 0; i < classes; ++i) rounded[i] = float_to_bf16(x[i] * factor);
  rounded[label] = float_to_bf16(x[label] * factor - scale);
  return std::log(sum) + greatest - target;
}

TROUPE_VECTORIZED
float softmax_row(float* scores, std::int64_t count, std::int64_t first, std::int64_t end,
                  float scale, float* inverse_sum) {
  const float greatest = max_of(scores + first, end - first) * scale;
  const float sum = exp_and_sum(scores + first, end - first, scale, greatest);
  zero_outside(scores, count, first, end);
  *inverse_sum = 1.0f / sum;
  return std::log(sum) + greatest;
}

TROUPE_VECTORIZED
void softmax_backward_row(float* scores, float* dscores, std::int64_t count, std::int64_t first,
                          std::int64_t end, float scale, float log_sum_exp, float delta) {
  float* __restrict p = scores;
  float* __restrict d = dscores;
  std::int64_t i = first;
  for (; i + kLanes <= end; i += kLanes) {
    Floats16 probability, gradient;
    load_vector(p + i, probability);
    load_vector(d + i, gradient);
    exp_vector(probability * scale - log_sum_exp, probability);
    store_vector(probability, p + i);
    store_vector(probability * (gradient - delta) * scale, d + i);
  }
  for (; i < end; ++i) {
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
  for (const std::int64_t half : {0, kLanes / 2})
    greatest_seen(scores + column + half, first + half, last + half, begin, end, greatest + half);
  for (int lane = 0; lane < kLanes; ++lane) greatest[lane] *= scale;
  for (std::int64_t key = begin; key < end; ++key) {
    float* x = scores + key * kQueryBlock + column;
    const auto k = static_cast<std::int32_t>(key);
    for (int lane = 0; lane < kLanes; ++lane) {
      const float e = fast_exp(x[lane] * scale - greatest[lane]);
      const float seen = ((k >= first[lane]) & (k <= last[lane])) ? e : 0.0f;
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
      const float seen = ((k >= first[lane]) & (k <= last[lane])) ? e : 0.0f;
      // A score outside was computed from whatever lies there: it must not become a NaN here.
      const float ds = seen * (d[lane] - deltas[lane]) * scale;
      p[lane] = seen;
      d[lane] = ((k >= first[lane]) & (k <= last[lane])) ? ds : 0.0f;
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

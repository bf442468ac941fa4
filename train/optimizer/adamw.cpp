#include "train/optimizer/adamw.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/check.h"
#include "train/tensor/vectorize.h"

namespace troupe::train {
namespace {

// The step's constants in fp32, computed once in double.
struct Factors {
  float keep, beta1_rest, beta2, beta2_rest, step_size, root_correction, epsilon, gradient_scale;
};

Factors factors_of(const AdamWStep& s, bool decays) {
  const double count = static_cast<double>(s.step);
  const double correction1 = 1.0 - std::pow(s.beta1, count);
  const double correction2 = 1.0 - std::pow(s.beta2, count);
  return {static_cast<float>(decays ? 1.0 - s.learning_rate * s.weight_decay : 1.0),
          static_cast<float>(1.0 - s.beta1),
          static_cast<float>(s.beta2),
          static_cast<float>(1.0 - s.beta2),
          static_cast<float>(s.learning_rate / correction1),
          static_cast<float>(std::sqrt(correction2)),
          static_cast<float>(s.epsilon),
          s.gradient_scale};
}

TROUPE_VECTORIZED
void update_elements(const Factors& f, float* __restrict p, const float* __restrict g,
                     float* __restrict m, float* __restrict v, std::int64_t count) {
  const Factors k = f;
  for (std::int64_t i = 0; i < count; ++i) {
    const float gradient = g[i] * k.gradient_scale;
    const float first = m[i] + (gradient - m[i]) * k.beta1_rest;
    const float second = v[i] * k.beta2 + gradient * gradient * k.beta2_rest;
    m[i] = first;
    v[i] = second;
    p[i] =
        p[i] * k.keep - k.step_size * (first / (std::sqrt(second) / k.root_correction + k.epsilon));
  }
}

}  // namespace

void adamw_update(const AdamWStep& step, bool decays, std::span<float> parameters,
                  std::span<const float> gradients, std::span<float> first_moments,
                  std::span<float> second_moments) {
  const std::size_t count = parameters.size();
  TROUPE_CHECK(gradients.size() == count && first_moments.size() == count &&
               second_moments.size() == count);
  TROUPE_CHECK(step.step >= 1, "step {}", step.step);
  update_elements(factors_of(step, decays), parameters.data(), gradients.data(),
                  first_moments.data(), second_moments.data(), static_cast<std::int64_t>(count));
}

void adamw_update(const AdamWStep& step, std::span<const DecayRange> ranges, std::int64_t begin,
                  std::span<float> parameters, std::span<const float> gradients,
                  std::span<float> first_moments, std::span<float> second_moments) {
  const std::int64_t end = begin + static_cast<std::int64_t>(parameters.size());
  std::int64_t at = begin;
  auto range = std::upper_bound(ranges.begin(), ranges.end(), begin,
                                [](std::int64_t v, const DecayRange& r) { return v < r.end; });
  for (; at < end; ++range) {
    TROUPE_CHECK(range != ranges.end() && range->begin <= at, "no decay range at {}", at);
    const auto offset = static_cast<std::size_t>(at - begin);
    const auto count = static_cast<std::size_t>(std::min(end, range->end) - at);
    adamw_update(step, range->decays, parameters.subspan(offset, count),
                 gradients.subspan(offset, count), first_moments.subspan(offset, count),
                 second_moments.subspan(offset, count));
    at += static_cast<std::int64_t>(count);
  }
}

}  // namespace troupe::train

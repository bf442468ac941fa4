#include "train/optimizer/adamw.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/check.h"
#include "train/tensor/convert.h"
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

// One element, in registers.
struct Element {
  float parameter, first, second;
};

TROUPE_INLINE Element updated(const Factors& k, const Element& e, float stored_gradient) {
  const float gradient = stored_gradient * k.gradient_scale;
  const float first = e.first + (gradient - e.first) * k.beta1_rest;
  const float second = e.second * k.beta2 + gradient * gradient * k.beta2_rest;
  const float denominator = std::sqrt(second) / k.root_correction + k.epsilon;
  return {e.parameter * k.keep - k.step_size * (first / denominator), first, second};
}

TROUPE_VECTORIZED
void update_elements(const Factors& f, float* __restrict p, const float* __restrict g,
                     float* __restrict m, float* __restrict v, std::int64_t count) {
  const Factors k = f;
  for (std::int64_t i = 0; i < count; ++i) {
    const Element e = updated(k, {p[i], m[i], v[i]}, g[i]);
    p[i] = e.parameter, m[i] = e.first, v[i] = e.second;
  }
}

TROUPE_VECTORIZED_WORDS
void update_elements(const Factors& f, std::uint16_t* __restrict p, const float* __restrict g,
                     std::uint16_t* __restrict m, std::uint16_t* __restrict v, std::int64_t count) {
  const Factors k = f;
  for (std::int64_t i = 0; i < count; ++i) {
    const Element e =
        updated(k, {bf16_to_float(p[i]), bf16_to_float(m[i]), bf16_to_float(v[i])}, g[i]);
    p[i] = float_to_bf16(e.parameter);
    m[i] = float_to_bf16(e.first);
    v[i] = float_to_bf16(e.second);
  }
}

template <typename T>
void update_span(const AdamWStep& step, bool decays, std::span<T> parameters,
                 std::span<const float> gradients, std::span<T> first_moments,
                 std::span<T> second_moments) {
  const std::size_t count = parameters.size();
  TROUPE_CHECK(gradients.size() == count && first_moments.size() == count &&
               second_moments.size() == count);
  TROUPE_CHECK(step.step >= 1, "step {}", step.step);
  update_elements(factors_of(step, decays), parameters.data(), gradients.data(),
                  first_moments.data(), second_moments.data(), static_cast<std::int64_t>(count));
}

template <typename T>
void update_ranges(const AdamWStep& step, std::span<const DecayRange> ranges, std::int64_t begin,
                   std::span<T> parameters, std::span<const float> gradients,
                   std::span<T> first_moments, std::span<T> second_moments) {
  const std::int64_t end = begin + static_cast<std::int64_t>(parameters.size());
  std::int64_t at = begin;
  auto range = std::upper_bound(ranges.begin(), ranges.end(), begin,
                                [](std::int64_t v, const DecayRange& r) { return v < r.end; });
  for (; at < end; ++range) {
    TROUPE_CHECK(range != ranges.end() && range->begin <= at, "no decay range at {}", at);
    const auto offset = static_cast<std::size_t>(at - begin);
    const auto count = static_cast<std::size_t>(std::min(end, range->end) - at);
    update_span(step, range->decays, parameters.subspan(offset, count),
                gradients.subspan(offset, count), first_moments.subspan(offset, count),
                second_moments.subspan(offset, count));
    at += static_cast<std::int64_t>(count);
  }
}

}  // namespace

void adamw_update(const AdamWStep& step, bool decays, std::span<float> parameters,
                  std::span<const float> gradients, std::span<float> first_moments,
                  std::span<float> second_moments) {
  update_span(step, decays, parameters, gradients, first_moments, second_moments);
}

void adamw_update(const AdamWStep& step, bool decays, std::span<std::uint16_t> parameters,
                  std::span<const float> gradients, std::span<std::uint16_t> first_moments,
                  std::span<std::uint16_t> second_moments) {
  update_span(step, decays, parameters, gradients, first_moments, second_moments);
}

void adamw_update(const AdamWStep& step, std::span<const DecayRange> ranges, std::int64_t begin,
                  std::span<float> parameters, std::span<const float> gradients,
                  std::span<float> first_moments, std::span<float> second_moments) {
  update_ranges(step, ranges, begin, parameters, gradients, first_moments, second_moments);
}

void adamw_update(const AdamWStep& step, std::span<const DecayRange> ranges, std::int64_t begin,
                  std::span<std::uint16_t> parameters, std::span<const float> gradients,
                  std::span<std::uint16_t> first_moments, std::span<std::uint16_t> second_moments) {
  update_ranges(step, ranges, begin, parameters, gradients, first_moments, second_moments);
}

}  // namespace troupe::train

#include "train/optimizer/adamw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "runtime/base/check.h"
#include "train/optimizer/random_rounding.h"
#include "train/tensor/convert.h"
#include "train/tensor/vectorize.h"

namespace troupe::train {
namespace {

// Elements ahead of an update that are fetched: memory is busy while the divisions are. The states
// of a rank lie in small pages, at whose ends the processor's own prefetching stops.
constexpr std::int64_t kAhead = 1024;

// One element, in registers.
struct Element {
  float parameter, first, second;
};

TROUPE_INLINE Element updated(const AdamWFactors& k, const Element& e, float stored_gradient) {
  const float gradient = stored_gradient * k.gradient_scale;
  const float first = e.first + (gradient - e.first) * k.beta1_rest;
  const float second = e.second * k.beta2 + gradient * gradient * k.beta2_rest;
  const float denominator = std::sqrt(second) / k.root_correction + k.epsilon;
  return {e.parameter * k.keep - k.step_size * (first / denominator), first, second};
}

TROUPE_VECTORIZED
void update_elements(const AdamWFactors& factors, float* __restrict p, const float* __restrict g,
                     float* __restrict m, float* __restrict v, std::int64_t count) {
  const AdamWFactors k = factors;
  const auto update = [&](std::int64_t i) {
    const Element e = updated(k, {p[i], m[i], v[i]}, g[i]);
    p[i] = e.parameter, m[i] = e.first, v[i] = e.second;
  };
  std::int64_t i = 0;
  for (; i + kLineElements <= count; i += kLineElements) {
    __builtin_prefetch(p + i + kAhead, 1);
    __builtin_prefetch(m + i + kAhead, 1);
    __builtin_prefetch(v + i + kAhead, 1);
    __builtin_prefetch(g + i + kAhead);
    for (std::int64_t lane = 0; lane < kLineElements; ++lane) update(i + lane);
  }
  for (; i < count; ++i) update(i);
}

TROUPE_VECTORIZED_WORDS
void update_elements(const AdamWFactors& factors, std::uint16_t* __restrict p,
                     const float* __restrict g, std::uint16_t* __restrict m,
                     std::uint16_t* __restrict v, std::int64_t count) {
  const AdamWFactors k = factors;
  for (std::int64_t i = 0; i < count; ++i) {
    const Element e =
        updated(k, {bf16_to_float(p[i]), bf16_to_float(m[i]), bf16_to_float(v[i])}, g[i]);
    p[i] = float_to_bf16(e.parameter);
    m[i] = float_to_bf16(e.first);
    v[i] = float_to_bf16(e.second);
  }
}

// `first`: the flat position of element 0.
TROUPE_VECTORIZED_WORDS
void update_randomly(const AdamWFactors& factors, std::uint64_t key, std::int64_t first,
                     std::uint16_t* __restrict p, const float* __restrict g,
                     std::uint16_t* __restrict m, std::uint16_t* __restrict v, std::int64_t count) {
  const AdamWFactors k = factors;
  RoundingWords words;
  for (std::int64_t begin = 0; begin < count;) {
    const std::int64_t odd = (first + begin) & 1;
    fill_rounding_words(key, first + begin - odd, words);
    const std::uint32_t* low = words.low + odd;
    const std::uint32_t* high = words.high + odd;
    const std::int64_t size = std::min(RoundingWords::kElements - odd, count - begin);
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t at = begin + i;
      const Element e =
          updated(k, {bf16_to_float(p[at]), bf16_to_float(m[at]), bf16_to_float(v[at])}, g[at]);
      p[at] = random_bf16(e.parameter, low[i] & 0xffffu);
      m[at] = random_bf16(e.first, low[i] >> 16);
      v[at] = random_bf16(e.second, high[i] & 0xffffu);
    }
    begin += size;
  }
}

template <typename T>
void update_span(const AdamWFactors& factors, std::int64_t begin, std::span<T> parameters,
                 std::span<const float> gradients, std::span<T> first_moments,
                 std::span<T> second_moments) {
  const std::size_t size = parameters.size();
  TROUPE_CHECK(gradients.size() == size && first_moments.size() == size &&
               second_moments.size() == size);
  const auto count = static_cast<std::int64_t>(size);
  T *p = parameters.data(), *m = first_moments.data(), *v = second_moments.data();
  if (!factors.rounding_key)
    update_elements(factors, p, gradients.data(), m, v, count);
  else if constexpr (sizeof(T) == sizeof(std::uint16_t))
    update_randomly(factors, *factors.rounding_key, begin, p, gradients.data(), m, v, count);
  else
    TROUPE_CHECK(false, "a state in fp32 is not rounded");
}

constexpr std::array<std::string_view, 2> kSlots{"exp_avg", "exp_avg_sq"};

class AdamWUpdate final : public PreparedUpdate {
 public:
  AdamWUpdate(const AdamWStep& step, std::span<const ParameterGroup> groups) {
    for (const ParameterGroup& group : groups) factors_.emplace_back(step, group);
  }

  void update(std::size_t group, const UpdateChunk& chunk) const override {
    if (chunk.state == DType::kBF16)
      update_as<std::uint16_t>(factors_[group], chunk);
    else
      update_as<float>(factors_[group], chunk);
  }

 private:
  template <typename T>
  static void update_as(const AdamWFactors& factors, const UpdateChunk& chunk) {
    update_span(factors, chunk.begin, elements_of<T>(chunk.parameters), chunk.gradients,
                elements_of<T>(chunk.slots[0]), elements_of<T>(chunk.slots[1]));
  }

  std::vector<AdamWFactors> factors_;  // by group
};

template <typename T>
void update_parts(const AdamWStep& step, const ParameterGroups& groups, std::int64_t begin,
                  std::span<T> parameters, std::span<const float> gradients, std::span<T> first,
                  std::span<T> second) {
  const std::array<std::span<std::byte>, kSlots.size()> slots{std::as_writable_bytes(first),
                                                              std::as_writable_bytes(second)};
  update_chunk(AdamWUpdate(step, groups.groups()), groups,
               {.begin = begin,
                .state = sizeof(T) == sizeof(float) ? DType::kF32 : DType::kBF16,
                .parameters = std::as_writable_bytes(parameters),
                .gradients = gradients,
                .slots = slots});
}

}  // namespace

AdamWFactors::AdamWFactors(const AdamWStep& s, const ParameterGroup& group) {
  TROUPE_CHECK(s.step >= 1, "step {}", s.step);
  const double count = static_cast<double>(s.step);
  const double learning_rate = s.learning_rate * group.learning_rate_factor;
  beta1_rest = static_cast<float>(1.0 - s.beta1);
  beta2 = static_cast<float>(s.beta2);
  beta2_rest = static_cast<float>(1.0 - s.beta2);
  step_size = static_cast<float>(learning_rate / (1.0 - std::pow(s.beta1, count)));
  root_correction = static_cast<float>(std::sqrt(1.0 - std::pow(s.beta2, count)));
  epsilon = static_cast<float>(s.epsilon);
  gradient_scale = s.gradient_scale;
  keep = group.decays ? static_cast<float>(1.0 - learning_rate * s.weight_decay) : 1.0f;
  rounding_key = s.rounding_key;
}

void adamw_update(const AdamWFactors& factors, std::int64_t begin, std::span<float> parameters,
                  std::span<const float> gradients, std::span<float> first_moments,
                  std::span<float> second_moments) {
  update_span(factors, begin, parameters, gradients, first_moments, second_moments);
}

void adamw_update(const AdamWFactors& factors, std::int64_t begin,
                  std::span<std::uint16_t> parameters, std::span<const float> gradients,
                  std::span<std::uint16_t> first_moments, std::span<std::uint16_t> second_moments) {
  update_span(factors, begin, parameters, gradients, first_moments, second_moments);
}

void adamw_update(const AdamWStep& step, const ParameterGroups& groups, std::int64_t begin,
                  std::span<float> parameters, std::span<const float> gradients,
                  std::span<float> first_moments, std::span<float> second_moments) {
  update_parts(step, groups, begin, parameters, gradients, first_moments, second_moments);
}

void adamw_update(const AdamWStep& step, const ParameterGroups& groups, std::int64_t begin,
                  std::span<std::uint16_t> parameters, std::span<const float> gradients,
                  std::span<std::uint16_t> first_moments, std::span<std::uint16_t> second_moments) {
  update_parts(step, groups, begin, parameters, gradients, first_moments, second_moments);
}

double uncorrected_epsilon(const AdamWStep& settings, std::int64_t updates) {
  return settings.epsilon / std::sqrt(1.0 - std::pow(settings.beta2, static_cast<double>(updates)));
}

std::span<const std::string_view> AdamW::slots() const { return kSlots; }

AdamWStep AdamW::at(const OptimizerStep& step) const {
  AdamWStep result = settings_;
  result.learning_rate = step.learning_rate;
  result.step = step.updates;
  result.gradient_scale = step.gradient_scale;
  result.rounding_key = step.rounding_key;
  return result;
}

std::unique_ptr<const PreparedUpdate> AdamW::prepare(const OptimizerStep& step,
                                                     std::span<const ParameterGroup> groups) const {
  return std::make_unique<AdamWUpdate>(at(step), groups);
}

}  // namespace troupe::train

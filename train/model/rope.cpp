#include "train/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const double context = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength > context / scaling.low_freq_factor) return frequency / scaling.factor;
  if (wavelength < context / scaling.high_freq_factor) return frequency;
  const double blend = (context / wavelength - scaling.low_freq_factor) /
                       (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - blend) * frequency / scaling.factor + blend * frequency;
}

// Where yarn's ramp begins and ends, in pairs.
struct YarnRange {
  double low = 0, high = 0;
};

YarnRange yarn_range(const Rope& rope, std::int64_t head_dim) {
  const RopeScaling& scaling = rope.scaling;
  const auto dim = static_cast<double>(head_dim);
  const auto pair_that_turns = [&](double rotations) {
    const double context = static_cast<double>(scaling.original_max_position_embeddings);
    return dim * std::log(context / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  YarnRange range{pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)};
  if (scaling.truncate) range = {std::floor(range.low), std::ceil(range.high)};
  range = {std::max(range.low, 0.0), std::min(range.high, dim - 1.0)};
  if (range.low == range.high) range.high += 0.001;
  return range;
}

double yarn_frequency(double frequency, std::int64_t pair, YarnRange range, double factor) {
  const double ramp =
      std::clamp((static_cast<double>(pair) - range.low) / (range.high - range.low), 0.0, 1.0);
  return frequency / factor * ramp + frequency * (1.0 - ramp);
}

double scaled(double frequency, std::int64_t pair, const Rope& rope, std::int64_t head_dim) {
  const RopeScaling& scaling = rope.scaling;
  switch (scaling.kind) {
    case RopeScaling::Kind::kNone:
      return frequency;
    case RopeScaling::Kind::kLinear:
      return frequency / scaling.factor;
    case RopeScaling::Kind::kLlama3:
      return llama3_frequency(frequency, scaling);
    case RopeScaling::Kind::kYarn:
      return yarn_frequency(frequency, pair, yarn_range(rope, head_dim), scaling.factor);
  }
  return frequency;
}

}  // namespace

std::vector<float> rope_frequencies(const Rope& rope, std::int64_t head_dim) {
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    const double frequency =
        std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    frequencies.push_back(static_cast<float>(scaled(frequency, i, rope, head_dim)));
  }
  return frequencies;
}

void fill_rope_tables(const Rope& rope, std::int64_t head_dim, std::int64_t positions,
                      std::span<float> cosine, std::span<float> sine) {
  const std::vector<float> frequencies = rope_frequencies(rope, head_dim);
  const std::size_t half = frequencies.size();
  const auto factor = static_cast<float>(rope.scaling.attention_factor);
  TROUPE_CHECK(cosine.size() >= static_cast<std::size_t>(positions) * half);
  TROUPE_CHECK(sine.size() >= static_cast<std::size_t>(positions) * half);
  for (std::int64_t position = 0; position < positions; ++position) {
    for (std::size_t i = 0; i < half; ++i) {
      // The angle is rounded to fp32 first, as HF computes it.
      const double angle = static_cast<float>(position) * frequencies[i];
      const std::size_t at = static_cast<std::size_t>(position) * half + i;
      cosine[at] = static_cast<float>(std::cos(angle)) * factor;
      sine[at] = static_cast<float>(std::sin(angle)) * factor;
    }
  }
}

}  // namespace troupe::train

#include "train/model/rope.h"

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

}  // namespace

std::vector<float> rope_frequencies(const ModelConfig& config) {
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < config.head_dim / 2; ++i) {
    double frequency = std::pow(
        config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
    switch (config.rope_scaling.kind) {
      case RopeScaling::Kind::kNone:
        break;
      case RopeScaling::Kind::kLinear:
        frequency /= config.rope_scaling.factor;
        break;
      case RopeScaling::Kind::kLlama3:
        frequency = llama3_frequency(frequency, config.rope_scaling);
        break;
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

void fill_rope_tables(const ModelConfig& config, std::int64_t positions, std::span<float> cosine,
                      std::span<float> sine) {
  const std::vector<float> frequencies = rope_frequencies(config);
  const std::size_t half = frequencies.size();
  TROUPE_CHECK(cosine.size() >= static_cast<std::size_t>(positions) * half);
  TROUPE_CHECK(sine.size() >= static_cast<std::size_t>(positions) * half);
  for (std::int64_t position = 0; position < positions; ++position) {
    for (std::size_t i = 0; i < half; ++i) {
      // The angle is rounded to fp32 first, as HF computes it.
      const double angle = static_cast<float>(position) * frequencies[i];
      const std::size_t at = static_cast<std::size_t>(position) * half + i;
      cosine[at] = static_cast<float>(std::cos(angle));
      sine[at] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace troupe::train

#include "train/model/initialize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "train/tensor/vectorize.h"

namespace troupe::train {
namespace {

// The finaliser of SplitMix64: a bijection that spreads every bit.
TROUPE_INLINE std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Standard normal numbers come in pairs (Box and Muller): two uniform numbers become a radius and
// an angle. The functions below are written out, not the library's, so that loops over them
// vectorise: a model's weights are made before its first step. Their errors are below 1e-14, far
// below what a float shows; -ffp-contract=off makes them the same on every processor.
constexpr std::size_t kPairs = 128;  // at a time
constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;
constexpr double kTwo52 = 0x1p52, kTwo84 = 0x1p84;

// (0, 1], 53 bits. The integer is put together from two halves that are exponents' mantissas:
// below AVX-512 no instruction converts 64-bit integers.
TROUPE_INLINE double unit_interval(std::uint64_t bits) {
  const std::uint64_t value = bits >> 11;
  const auto low = std::bit_cast<double>((value & 0xffffffffu) | 0x4330000000000000u);
  const auto high = std::bit_cast<double>((value >> 32) | 0x4530000000000000u);
  return ((high - (kTwo84 + kTwo52)) + low + 1.0) * 0x1p-53;
}

// ln u for u in [2⁻⁵³, 1]: u = m·2ᵉ with m about 1, ln m = 2 artanh((m − 1) / (m + 1)).
TROUPE_INLINE double natural_log(double u) {
  const auto bits = std::bit_cast<std::uint64_t>(u);
  const double exponent =
      std::bit_cast<double>((bits >> 52) | 0x4330000000000000u) - (kTwo52 + 1023.0);
  const auto mantissa =
      std::bit_cast<double>((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);  // [1, 2)
  const bool upper = mantissa > std::numbers::sqrt2;
  const double m = upper ? 0.5 * mantissa : mantissa;
  const double e = upper ? exponent + 1.0 : exponent;
  const double s = (m - 1.0) / (m + 1.0), q = s * s;
  double sum = 1.0 / 17;
  sum = sum * q + 1.0 / 15;
  sum = sum * q + 1.0 / 13;
  sum = sum * q + 1.0 / 11;
  sum = sum * q + 1.0 / 9;
  sum = sum * q + 1.0 / 7;
  sum = sum * q + 1.0 / 5;
  sum = sum * q + 1.0 / 3;
  sum = sum * q + 1.0;
  return e * std::numbers::ln2 + 2.0 * s * sum;
}

// Numbers 2·first, 2·first + 1, … of a stream, `kPairs` pairs of them, times `deviation`.
TROUPE_VECTORIZED void normal_pairs(std::uint64_t stream, std::uint64_t first, double deviation,
                                    float* out) {
  double radius[kPairs], turns[kPairs];
  for (std::size_t i = 0; i < kPairs; ++i) {
    const std::uint64_t bits = mix(stream + (first + i) * 2 * kGolden);
    radius[i] = std::sqrt(-2.0 * natural_log(unit_interval(bits)));
    turns[i] = unit_interval(mix(bits ^ stream));
  }
  for (std::size_t i = 0; i < kPairs; ++i) {
    // Quarters of a turn, the nearest whole one and what is left: at most an eighth of a turn.
    const double quarters = 4.0 * turns[i];
    const double rounded = quarters + kTwo52;  // the whole number stands in its last bits
    const double whole = rounded - kTwo52;
    const double x = (quarters - whole) * (std::numbers::pi / 2), q = x * x;
    double sine = 1.0 / 6227020800;
    sine = sine * q - 1.0 / 39916800;
    sine = sine * q + 1.0 / 362880;
    sine = sine * q - 1.0 / 5040;
    sine = sine * q + 1.0 / 120;
    sine = sine * q - 1.0 / 6;
    sine = (sine * q + 1.0) * x;
    double cosine = -1.0 / 87178291200;
    cosine = cosine * q + 1.0 / 479001600;
    cosine = cosine * q - 1.0 / 3628800;
    cosine = cosine * q + 1.0 / 40320;
    cosine = cosine * q - 1.0 / 720;
    cosine = cosine * q + 1.0 / 24;
    cosine = cosine * q - 1.0 / 2;
    cosine = cosine * q + 1.0;
    // The quarter exchanges sine and cosine and chooses their signs, by masks: with branches the
    // compiler would not vectorise the loop.
    const auto quarter = std::bit_cast<std::uint64_t>(rounded);
    const std::uint64_t exchanged = 0 - (quarter & 1);
    const std::uint64_t left = (quarter + 1) >> 1 << 63, lower = quarter >> 1 << 63;
    const auto sine_bits = std::bit_cast<std::uint64_t>(sine);
    const auto cosine_bits = std::bit_cast<std::uint64_t>(cosine);
    const std::uint64_t difference = (sine_bits ^ cosine_bits) & exchanged;
    const auto across = std::bit_cast<double>(cosine_bits ^ difference ^ left);
    const auto up = std::bit_cast<double>(sine_bits ^ difference ^ lower);
    out[2 * i] = static_cast<float>(deviation * (radius[i] * across));
    out[2 * i + 1] = static_cast<float>(deviation * (radius[i] * up));
  }
}

}  // namespace

void initialize_parameter(const ParameterInfo& parameter, double initializer_range,
                          std::uint64_t seed, std::int64_t begin, std::span<float> out) {
  TROUPE_CHECK(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= parameter.elements);
  if (parameter.initial.kind == InitialValue::Kind::kUniform) {
    const std::uint64_t stream = mix(seed ^ xxh3_64(bytes_of(parameter.name)));
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint64_t number = static_cast<std::uint64_t>(begin) + i;
      const double unit = unit_interval(mix(stream + number * kGolden));
      out[i] = static_cast<float>(parameter.initial.scale * (1.0 - 2.0 * unit));
    }
    return;
  }
  if (parameter.initial.kind != InitialValue::Kind::kNormal) {
    const bool ones = parameter.initial.kind == InitialValue::Kind::kOnes;
    std::fill(out.begin(), out.end(), ones ? 1.0f : 0.0f);
    return;
  }
  const double deviation = initializer_range * parameter.initial.scale;
  const std::uint64_t stream = mix(seed ^ xxh3_64(bytes_of(parameter.name)));
  // Blocks begin at even numbers; the first and the last may be wanted in part.
  std::uint64_t number = static_cast<std::uint64_t>(begin);
  float block[2 * kPairs];
  for (std::size_t at = 0; at < out.size();) {
    const std::size_t skipped = number % 2;
    const std::size_t count = std::min(out.size() - at, 2 * kPairs - skipped);
    const bool whole = count == 2 * kPairs;
    normal_pairs(stream, number / 2, deviation, whole ? out.data() + at : block);
    if (!whole) std::copy_n(block + skipped, count, out.data() + at);
    at += count;
    number += count;
  }
}

void initialize_unit(const ParameterLayout& layout, int unit, double initializer_range,
                     std::uint64_t seed, std::span<float> out) {
  const UnitInfo& info = layout.units()[static_cast<std::size_t>(unit)];
  TROUPE_CHECK(static_cast<std::int64_t>(out.size()) == info.elements, "{} of {}", out.size(),
               info.elements);
  std::fill(out.begin(), out.end(), 0.0f);
  for (const ParameterInfo& parameter : layout.parameters(unit))
    initialize_parameter(parameter, initializer_range, seed, 0,
                         out.subspan(static_cast<std::size_t>(parameter.offset_elements),
                                     static_cast<std::size_t>(parameter.elements)));
}

}  // namespace troupe::train

#include "train/model/initialize.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"

namespace troupe::train {
namespace {

// The finaliser of SplitMix64: a bijection that spreads every bit.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// (0, 1], 53 bits.
double unit_interval(std::uint64_t bits) {
  return (static_cast<double>(bits >> 11) + 1.0) * 0x1p-53;
}

// Standard normal number `index` of a stream (Box and Muller): pairs share a radius.
double normal_at(std::uint64_t stream, std::uint64_t index) {
  const std::uint64_t pair = stream + (index / 2) * 2 * 0x9e3779b97f4a7c15u;
  const double radius = std::sqrt(-2.0 * std::log(unit_interval(mix(pair))));
  const double angle = 2.0 * std::numbers::pi * unit_interval(mix(mix(pair) ^ stream));
  return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

}  // namespace

void initialize_parameter(const ParameterInfo& parameter, double initializer_range,
                          std::uint64_t seed, std::int64_t begin, std::span<float> out) {
  TROUPE_CHECK(begin >= 0 && begin + static_cast<std::int64_t>(out.size()) <= parameter.elements);
  if (parameter.initial.kind != InitialValue::Kind::kNormal) {
    const bool ones = parameter.initial.kind == InitialValue::Kind::kOnes;
    std::fill(out.begin(), out.end(), ones ? 1.0f : 0.0f);
    return;
  }
  const double deviation = initializer_range * parameter.initial.scale;
  const std::uint64_t stream = mix(seed ^ xxh3_64(bytes_of(parameter.name)));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] =
        static_cast<float>(deviation * normal_at(stream, static_cast<std::uint64_t>(begin) + i));
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

#include "train/optimizer/dynamic_codes.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "runtime/base/check.h"
#include "train/tensor/update_rule.h"
#include "train/tensor/vectorize.h"

namespace troupe::train {
namespace {

TROUPE_VECTORIZED
float largest_magnitude(const float* values, std::int64_t count) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane)
      lanes[lane] = std::max(lanes[lane], std::abs(values[i + lane]));
  for (; i < count; ++i) lanes[0] = std::max(lanes[0], std::abs(values[i]));
  return *std::max_element(lanes, lanes + kLanes);
}

// The number of midpoints below each value, by halves: all values of a block side by side.
TROUPE_VECTORIZED
void nearest_codes(const float* __restrict midpoints, const float* __restrict values, float scale,
                   std::uint8_t* __restrict codes, std::int64_t count) {
  float scaled[kUpdateBlockElements];
  std::int32_t found[kUpdateBlockElements];
  for (std::int64_t i = 0; i < count; ++i) scaled[i] = values[i] / scale, found[i] = 0;
  for (std::int32_t half = 128; half > 0; half /= 2)
    for (std::int64_t i = 0; i < count; ++i)
      found[i] += midpoints[found[i] + half - 1] < scaled[i] ? half : 0;
  for (std::int64_t i = 0; i < count; ++i) codes[i] = static_cast<std::uint8_t>(found[i]);
}

}  // namespace

// For each power of ten the midpoints of 2^i (unsigned: 2^(i+1)) equal parts of [0.1, 1], then 0
// and 1.
DynamicCodes::DynamicCodes(bool has_sign) {
  constexpr int kPowers = 7;
  std::vector<double> values{0.0, 1.0};
  for (int power = 0; power < kPowers; ++power) {
    const int parts = 1 << (has_sign ? power : power + 1);
    const double scale = std::pow(10.0, power - (kPowers - 1));
    for (int part = 0; part < parts; ++part) {
      const double value = (0.1 + 0.9 * (part + 0.5) / parts) * scale;
      values.push_back(value);
      if (has_sign) values.push_back(-value);
    }
  }
  std::ranges::sort(values);
  TROUPE_CHECK(values.size() == values_.size());
  for (std::size_t i = 0; i < values.size(); ++i) values_[i] = static_cast<float>(values[i]);
  for (std::size_t i = 0; i < midpoints_.size(); ++i)
    midpoints_[i] = 0.5f * (values_[i] + values_[i + 1]);
}

const DynamicCodes& DynamicCodes::with_sign() {
  static const DynamicCodes codes(true);
  return codes;
}

const DynamicCodes& DynamicCodes::without_sign() {
  static const DynamicCodes codes(false);
  return codes;
}

float DynamicCodes::encode(std::span<const float> values, std::span<std::uint8_t> codes) const {
  const auto count = static_cast<std::int64_t>(values.size());
  TROUPE_CHECK(count <= kUpdateBlockElements && values.size() == codes.size());
  const float scale = largest_magnitude(values.data(), count);
  if (scale > 0.0f)
    nearest_codes(midpoints_.data(), values.data(), scale, codes.data(), count);
  else
    std::ranges::fill(codes, std::uint8_t{0});
  return scale;
}

void DynamicCodes::decode(std::span<const std::uint8_t> codes, float scale,
                          std::span<float> values) const {
  for (std::size_t i = 0; i < codes.size(); ++i) values[i] = values_[codes[i]] * scale;
}

}  // namespace troupe::train

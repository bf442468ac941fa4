#pragma once
// An exponential that vectorises: within 2 ulp of exp(x), the same bits on every instruction set.

#include <bit>
#include <cstdint>

#include "train/tensor/vectorize.h"

namespace troupe::train {

// exp(x) for x ≤ 88; smaller than exp(−87.3) gives a value below 2e-38, NaN stays NaN. Range
// reduction by log 2 in two parts and the degree-6 minimax polynomial of Cephes' expf (Moshier,
// 1992).
TROUPE_INLINE float fast_exp(float x) {
  // Comparisons are written so that a NaN passes through.
  float clamped = x < -87.33654f ? -87.33654f : x;
  clamped = clamped > 88.37626f ? 88.37626f : clamped;
  // Adding and subtracting 1.5·2^23 rounds to an integer.
  const float shifted = clamped * 1.44269504088896341f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  float r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // shifted's low mantissa bits hold n; 2^n by its exponent field.
  const std::uint32_t bits = (std::bit_cast<std::uint32_t>(shifted) + 127u) << 23;
  return p * std::bit_cast<float>(bits);
}

}  // namespace troupe::train

#pragma once
// An exponential that vectorises: within 2 ulp of exp(x), the same bits on every instruction set.
//
// What the compiler makes of a plain loop over fast_exp branches on its limits and takes twice as
// long: loops are written in vectors, with fast_exp for what is left.

#include <bit>
#include <cstdint>
#include <cstring>

#include "train/cpu/vectors.h"
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

namespace kernels {

// What fast_exp limits x to, for eight lanes each.
inline constexpr float kExpLeast[] = {-87.33654f, -87.33654f, -87.33654f, -87.33654f,
                                      -87.33654f, -87.33654f, -87.33654f, -87.33654f};
inline constexpr float kExpGreatest[] = {88.37626f, 88.37626f, 88.37626f, 88.37626f,
                                         88.37626f, 88.37626f, 88.37626f, 88.37626f};

// Written so that a NaN passes through, in what are single instructions. GCC 12 makes two of a
// selection whose one side it knows, and scalars of one that is wider than AVX2's vectors.
TROUPE_INLINE void clamp_to_exp(Floats8& x) {
  const float *least_at = kExpLeast, *greatest_at = kExpGreatest;
  asm("" : "+r"(least_at), "+r"(greatest_at));
  Floats8 least, greatest;
  load_vector(least_at, least);
  load_vector(greatest_at, greatest);
  x = least > x ? least : x;
  x = x > greatest ? greatest : x;
}

// out = fast_exp(x): the same operations in the same order.
TROUPE_INLINE void exp_vector(const Floats16& x, Floats16& out) {
  Floats8 low = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7);
  Floats8 high = __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  clamp_to_exp(low), clamp_to_exp(high);
  const Floats16 clamped =
      __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const Floats16 shifted = clamped * 1.44269504088896341f + 12582912.0f;
  const Floats16 n = shifted - 12582912.0f;
  Floats16 r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Floats16 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  VectorOf<16>::Mask bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 127) << 23;
  Floats16 power;
  std::memcpy(&power, &bits, sizeof power);
  out = p * power;
}

}  // namespace kernels

}  // namespace troupe::train

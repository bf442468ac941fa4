#pragma once
// Loops in vectors that are written as such: private to train/cpu.
//
// What the compiler makes of a plain loop over fast_exp branches on its limits and takes twice as
// long. These round like the plain loops, element by element, on every instruction set.

#include <cstdint>
#include <cstring>

#include "train/cpu/exp.h"
#include "train/tensor/vectorize.h"

namespace troupe::train::kernels {

using Floats8 __attribute__((vector_size(8 * sizeof(float)))) = float;
using Floats16 __attribute__((vector_size(16 * sizeof(float)))) = float;

// Not by value: a vector's way through a call depends on the instruction set.
template <typename Vector>
TROUPE_INLINE void load_vector(const float* from, Vector& to) {
  std::memcpy(&to, from, sizeof to);
}
template <typename Vector>
TROUPE_INLINE void store_vector(const Vector& from, float* to) {
  std::memcpy(to, &from, sizeof from);
}

// Comparisons are written so that a NaN passes through. Eight lanes: of wider ones, GCC 12 makes
// scalars where vectors are as wide as AVX2's.
TROUPE_INLINE void clamp_to_exp(Floats8& x) {
  const Floats8 least = Floats8{} - 87.33654f, greatest = Floats8{} + 88.37626f;
  x = x < least ? least : x;
  x = x > greatest ? greatest : x;
}

// out = fast_exp(x): the same operations in the same order.
TROUPE_INLINE void exp_vector(const Floats16& x, Floats16& out) {
  using Integers16 __attribute__((vector_size(16 * sizeof(std::int32_t)))) = std::int32_t;
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
  Integers16 bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 127) << 23;
  Floats16 power;
  std::memcpy(&power, &bits, sizeof power);
  out = p * power;
}

}  // namespace troupe::train::kernels

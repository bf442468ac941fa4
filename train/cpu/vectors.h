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

// out = fast_exp(x): the same operations in the same order.
TROUPE_INLINE void exp_vector(const Floats16& x, Floats16& out) {
  using Integers16 __attribute__((vector_size(16 * sizeof(std::int32_t)))) = std::int32_t;
  const Floats16 least = Floats16{} - 87.33654f, greatest = Floats16{} + 88.37626f;
  Floats16 clamped = x < least ? least : x;
  clamped = clamped > greatest ? greatest : clamped;
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

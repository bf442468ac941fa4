#pragma once
// Elements of matrices as the stand-in of libcublasLt reads and writes them: decoded and encoded
// here, and nowhere by what is tested with it.

#include <library_types.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace troupe::tests::blas_lt {

// 0: a type that no matrix of the stand-in has.
inline std::size_t type_bytes(int type) {
  switch (type) {
    case CUDA_R_32F:
      return 4;
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
      return 1;
    default:
      return 0;
  }
}

// OCP's formats of 8 bits. E4M3 has no infinities, and one number that is none; E5M2 is IEEE's.
inline float decode_fp8(std::uint8_t code, int exponent_bits, int fraction_bits, int bias) {
  const int exponent = (code >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = code & ((1 << fraction_bits) - 1);
  const float sign = code & 0x80 ? -1.0f : 1.0f;
  const bool ieee = exponent_bits == 5;
  if (ieee && exponent == 31) return fraction ? NAN : sign * INFINITY;
  if (!ieee && (code & 0x7f) == 0x7f) return NAN;
  const float steps = static_cast<float>(exponent ? fraction + (1 << fraction_bits) : fraction);
  return sign * std::ldexp(steps, (exponent ? exponent : 1) - bias - fraction_bits);
}

inline float read(const void* matrix, int type, std::int64_t at) {
  const auto* bytes = static_cast<const std::uint8_t*>(matrix);
  if (type == CUDA_R_8F_E4M3) return decode_fp8(bytes[at], 4, 3, 7);
  if (type == CUDA_R_8F_E5M2) return decode_fp8(bytes[at], 5, 2, 15);
  std::uint32_t bits = 0;
  if (type == CUDA_R_16BF) {
    std::uint16_t upper = 0;
    std::memcpy(&upper, bytes + 2 * at, sizeof upper);
    bits = static_cast<std::uint32_t>(upper) << 16;
  } else {
    std::memcpy(&bits, bytes + 4 * at, sizeof bits);
  }
  return std::bit_cast<float>(bits);
}

// fp32, or bf16: to nearest, ties to even.
inline void write(void* matrix, int type, std::int64_t at, float value) {
  auto* bytes = static_cast<std::uint8_t*>(matrix);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (type != CUDA_R_16BF) {
    std::memcpy(bytes + 4 * at, &bits, sizeof bits);
    return;
  }
  const std::uint32_t rounded =
      std::isnan(value) ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
  const auto upper = static_cast<std::uint16_t>(rounded >> 16);
  std::memcpy(bytes + 2 * at, &upper, sizeof upper);
}

// What TF32 units take of an operand: 10 bits of fraction.
inline float rounded_to_tf32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu);
}

// The tanh form.
inline float gelu(float x) {
  const float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1.0f + std::tanh(inner));
}
inline float gelu_slope(float x) {
  const float t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
  const float inner_slope = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
  return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner_slope;
}

}  // namespace troupe::tests::blas_lt

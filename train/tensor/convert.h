#pragma once
// Conversion between fp32 and the types that weights are stored in.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/status.h"
#include "train/tensor/dtype.h"
#include "train/tensor/vectorize.h"

namespace troupe::train {

// Exact.
TROUPE_INLINE float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
// To nearest, ties to even, too large values become infinite: as PyTorch and the processors'
// instructions. A NaN stays a NaN, quiet, with its sign and payload (PyTorch's differ by build).
TROUPE_INLINE std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const std::uint32_t quiet = bits | 0x400000u;
  // A selection, not a branch: loops over it vectorise.
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>((is_nan ? quiet : rounded) >> 16);
}
// The same for whole arrays, as fast as memory allows. Elements may lie anywhere.
void float_from_bf16(const std::uint16_t* source, float* target, std::int64_t count);
void bf16_from_float(const float* source, std::uint16_t* target, std::int64_t count);
// Each value rounded to one that bf16 holds, left in fp32. In place: target may be source.
void round_to_bf16(const float* source, float* target, std::int64_t count);

// IEEE binary16. Exact.
float f16_to_float(std::uint16_t bits);
// To nearest, ties to even; too large values become infinite.
std::uint16_t float_to_f16(float value);

// Each value rounded to one that fp16 holds, left in fp32. In place: target may be source.
void round_to_f16(const float* source, float* target, std::int64_t count);

// Decodes `source`, little-endian elements of `dtype` without alignment, to fp32. F64 is rounded.
// The sizes must agree; integer types are refused (kUnsupported): no weight is stored so.
Status convert_to_float(std::span<const std::byte> source, DType dtype, std::span<float> target);
// The inverse, for F32, BF16, F16 and F64.
Status convert_from_float(std::span<const float> source, DType dtype, std::span<std::byte> target);

}  // namespace troupe::train

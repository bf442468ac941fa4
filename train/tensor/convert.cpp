#include "train/tensor/convert.h"

#include <cstring>

#include "train/tensor/vectorize.h"

namespace troupe::train {
namespace {

template <typename Stored, typename Decode>
void decode_all(std::span<const std::byte> source, std::span<float> target, Decode decode) {
  const std::byte* in = source.data();
  for (std::size_t i = 0; i < target.size(); ++i) {
    Stored element;
    std::memcpy(&element, in + i * sizeof(Stored), sizeof(Stored));
    target[i] = decode(element);
  }
}

template <typename Stored, typename Encode>
void encode_all(std::span<const float> source, std::span<std::byte> target, Encode encode) {
  std::byte* out = target.data();
  for (std::size_t i = 0; i < source.size(); ++i) {
    const Stored element = encode(source[i]);
    std::memcpy(out + i * sizeof(Stored), &element, sizeof(Stored));
  }
}

// Whether 16-bit elements lie where processors like them: the loops over whole arrays take those.
bool is_aligned(const std::byte* data) {
  return reinterpret_cast<std::uintptr_t>(data) % alignof(std::uint16_t) == 0;
}

Status check_sizes(std::size_t bytes, DType dtype, std::size_t elements) {
  if (bytes == elements * dtype_size(dtype)) return {};
  return error(Code::kInvalidArgument, "{} bytes hold no {} elements of {}", bytes, elements,
               dtype_name(dtype));
}

Status refuse(DType dtype) {
  return error(Code::kUnsupported,
               "tensors of type {} are not supported as weights; store them as F32, BF16 or F16",
               dtype_name(dtype));
}

}  // namespace

TROUPE_VECTORIZED_WORDS
void float_from_bf16(const std::uint16_t* source, float* target, std::int64_t count) {
  const std::uint16_t* __restrict in = source;
  float* __restrict out = target;
  for (std::int64_t i = 0; i < count; ++i) out[i] = bf16_to_float(in[i]);
}

TROUPE_VECTORIZED_WORDS
void bf16_from_float(const float* source, std::uint16_t* target, std::int64_t count) {
  const float* __restrict in = source;
  std::uint16_t* __restrict out = target;
  for (std::int64_t i = 0; i < count; ++i) out[i] = float_to_bf16(in[i]);
}

TROUPE_VECTORIZED_WORDS
void round_to_bf16(const float* source, float* target, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) target[i] = bf16_to_float(float_to_bf16(source[i]));
}

// Selections, not branches: the loop vectorises.
TROUPE_VECTORIZED
void round_to_f16(const float* source, float* target, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(source[i]);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const std::uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u)) & ~0x1fffu;
    // The sum with 0.5 rounds to a multiple of 2^-24.
    const auto subnormal =
        std::bit_cast<std::uint32_t>((std::bit_cast<float>(magnitude) + 0.5f) - 0.5f);
    std::uint32_t rounded = magnitude < 0x38800000u ? subnormal : normal;
    rounded = magnitude >= 0x477ff000u ? 0x7f800000u : rounded;  // ≥ 65520
    rounded = magnitude > 0x7f800000u ? magnitude | 0x400000u : rounded;
    target[i] = std::bit_cast<float>((bits & 0x80000000u) | rounded);
  }
}

float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  // Subnormal: mantissa × 2^-24, exact in fp32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

std::uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // ≥ 65520
  if (magnitude < 0x38800000u) {  // subnormal: the sum with 0.5 rounds to a multiple of 2^-24
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3f000000u));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

Status convert_to_float(std::span<const std::byte> source, DType dtype, std::span<float> target) {
  TROUPE_RETURN_IF_ERROR(check_sizes(source.size(), dtype, target.size()));
  switch (dtype) {
    case DType::kF32:
      if (!target.empty()) std::memcpy(target.data(), source.data(), source.size());
      return {};
    case DType::kBF16:
      if (is_aligned(source.data())) {
        float_from_bf16(reinterpret_cast<const std::uint16_t*>(source.data()), target.data(),
                        static_cast<std::int64_t>(target.size()));
      } else {
        decode_all<std::uint16_t>(source, target, bf16_to_float);
      }
      return {};
    case DType::kF16:
      decode_all<std::uint16_t>(source, target, f16_to_float);
      return {};
    case DType::kF64:
      decode_all<double>(source, target, [](double v) { return static_cast<float>(v); });
      return {};
    default:
      return refuse(dtype);
  }
}

Status convert_from_float(std::span<const float> source, DType dtype, std::span<std::byte> target) {
  TROUPE_RETURN_IF_ERROR(check_sizes(target.size(), dtype, source.size()));
  switch (dtype) {
    case DType::kF32:
      if (!source.empty()) std::memcpy(target.data(), source.data(), target.size());
      return {};
    case DType::kBF16:
      if (is_aligned(target.data())) {
        bf16_from_float(source.data(), reinterpret_cast<std::uint16_t*>(target.data()),
                        static_cast<std::int64_t>(source.size()));
      } else {
        encode_all<std::uint16_t>(source, target, float_to_bf16);
      }
      return {};
    case DType::kF16:
      encode_all<std::uint16_t>(source, target, float_to_f16);
      return {};
    case DType::kF64:
      encode_all<double>(source, target, [](float v) { return static_cast<double>(v); });
      return {};
    default:
      return refuse(dtype);
  }
}

}  // namespace troupe::train

#pragma once
// Matrices kept in 4 bits a weight, as bitsandbytes keeps them (QLoRA: Dettmers et al., 2023;
// bitsandbytes 0.50, functional.py and backends/default/ops.py).
//
// The elements, row by row, are cut into blocks of 64; each is scaled by its greatest magnitude
// (absmax) and rounded to the nearest of 16 codes. Nested (double quantisation): the magnitudes,
// less their mean, are themselves kept in 8 bits by a code of 256 values, in blocks of 256.
//
// In memory one behind another, each from a multiple of 64 bytes on:
//   codes              ⌈elements / 2⌉ bytes: two codes each, the first in the upper half
//   absmax             a block: fp32, or with nesting its 8-bit code
//   nested absmax      fp32 for 256 blocks (nested alone)
//   offset             fp32, the mean (nested alone)

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace troupe::train {

enum class FourBitCode {
  kNone,
  kNf4,  // quantiles of a normal distribution
  kFp4,  // a sign, two bits of exponent, one of mantissa
};

struct Quantization {
  FourBitCode code = FourBitCode::kNone;
  bool nested = false;
  explicit operator bool() const { return code != FourBitCode::kNone; }
  friend bool operator==(const Quantization&, const Quantization&) = default;
};

// "nf4", "fp4"; nothing for other names.
std::optional<FourBitCode> four_bit_code_from_name(std::string_view name);
std::string_view four_bit_code_name(FourBitCode code);

inline constexpr std::int64_t kQuantizedBlock = 64, kNestedBlock = 256;

// Where the parts of a matrix of so many elements lie.
struct QuantizedParts {
  QuantizedParts(Quantization quantization, std::int64_t elements);
  std::int64_t blocks, nested_blocks;
  std::size_t absmax, nested_absmax, offset;  // in bytes; the codes are at 0
  std::size_t bytes;                          // of all
};

// `out`: QuantizedParts::bytes of it, all of which are written.
void quantize(std::span<const float> values, Quantization quantization, std::span<std::byte> out);

// A quantised matrix in memory that it does not own.
struct QuantizedMatrix {
  Quantization quantization;
  const std::byte* data = nullptr;
  std::int64_t elements = 0;
  explicit operator bool() const { return data != nullptr; }
};

// The values of elements [begin, begin + out.size()); begin is even. In bf16 rounded to nearest.
void dequantize(const QuantizedMatrix& matrix, std::int64_t begin, std::span<float> out);
void dequantize(const QuantizedMatrix& matrix, std::int64_t begin, std::span<std::uint16_t> out);

}  // namespace troupe::train

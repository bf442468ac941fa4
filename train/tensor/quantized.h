#pragma once
// Matrices kept in 4 or 8 bits a weight, as bitsandbytes keeps them (QLoRA: Dettmers et al., 2023;
// LLM.int8(): Dettmers et al., 2022; bitsandbytes 0.50, functional.py and backends/default/ops.py).
//
// 4 bits: the elements, row by row, are cut into blocks of 64; each is scaled by its greatest
// magnitude (absmax) and rounded to the nearest of 16 codes. Nested (double quantisation): the
// magnitudes, less their mean, are themselves kept in 8 bits by a code of 256 values, in blocks of
// 256. 8 bits: each row, rounded to fp16, is scaled by its greatest magnitude to [−127, 127].
//
// In memory one behind another, each from a multiple of 64 bytes on:
//   codes              ⌈elements / 2⌉ bytes: two codes each, the first in the upper half; with 8
//                      bits a signed byte for each element
//   absmax             a block: fp32, or with nesting its 8-bit code; with 8 bits a row: fp32
//   nested absmax      fp32 for 256 blocks (nested alone)
//   offset             fp32, the mean (nested alone)

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace troupe::train {

enum class WeightCode {
  kNone,
  kNf4,   // quantiles of a normal distribution
  kFp4,   // a sign, two bits of exponent, one of mantissa
  kInt8,  // whole numbers
};

struct Quantization {
  WeightCode code = WeightCode::kNone;
  bool nested = false;  // of 4 bits alone
  explicit operator bool() const { return code != WeightCode::kNone; }
  int bits() const { return code == WeightCode::kInt8 ? 8 : 4; }
  friend bool operator==(const Quantization&, const Quantization&) = default;
};

// "nf4", "fp4", "int8"; nothing for other names.
std::optional<WeightCode> weight_code_from_name(std::string_view name);
std::string_view weight_code_name(WeightCode code);

inline constexpr std::int64_t kQuantizedBlock = 64, kNestedBlock = 256;

// Where the parts of a matrix of so many rows and columns lie.
struct QuantizedParts {
  QuantizedParts(Quantization quantization, std::int64_t rows, std::int64_t width);
  std::int64_t blocks, nested_blocks;         // that have an absmax of their own: rows with 8 bits
  std::size_t code_bytes;                     // from 0 on
  std::size_t absmax, nested_absmax, offset;  // in bytes
  std::size_t bytes;                          // of all
};

// `values`: whole rows of `width`. `out`: QuantizedParts::bytes of it, all of which are written.
void quantize(std::span<const float> values, std::int64_t width, Quantization quantization,
              std::span<std::byte> out);

// A quantised matrix in memory that it does not own.
struct QuantizedMatrix {
  Quantization quantization;
  const std::byte* data = nullptr;
  std::int64_t rows = 0, width = 0;
  std::int64_t elements() const { return rows * width; }
  explicit operator bool() const { return data != nullptr; }
};

// The values of elements [begin, begin + out.size()); begin is even. In bf16 rounded to nearest.
void dequantize(const QuantizedMatrix& matrix, std::int64_t begin, std::span<float> out);
void dequantize(const QuantizedMatrix& matrix, std::int64_t begin, std::span<std::uint16_t> out);

// What the codes of 4 bits stand for, by code, and those of nested magnitudes.
std::span<const float> code_values(WeightCode code);
std::span<const float> nested_code_values();

}  // namespace troupe::train

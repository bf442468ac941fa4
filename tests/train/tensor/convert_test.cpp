#include "train/tensor/convert.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace troupe::train {
namespace {

TEST_CASE("names and sizes go together") {
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(dtype_from_name(dtype_name(dtype)) == dtype);
    CHECK(dtype_size(dtype) >= 1);
  }
  CHECK(!dtype_from_name("F4"));
  CHECK(dtype_from_torch_name("torch.bfloat16") == DType::kBF16);
  CHECK(!dtype_from_torch_name("int8"));
}

TEST_CASE("every 16-bit pattern survives the way there and back") {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float f = f16_to_float(half), b = bf16_to_float(half);
    if (std::isnan(f))
      CHECK(std::isnan(f16_to_float(float_to_f16(f))));
    else if (float_to_f16(f) != half)
      FAIL("f16 " << bits);
    if (std::isnan(b))
      CHECK(std::isnan(bf16_to_float(float_to_bf16(b))));
    else if (float_to_bf16(b) != half)
      FAIL("bf16 " << bits);
  }
}

TEST_CASE("rounding is to nearest, ties to even") {
  CHECK(float_to_bf16(1.00390625f) == 0x3f80);  // a tie between 1 and 1.0078125
  CHECK(float_to_bf16(1.01171875f) == 0x3f82);
  CHECK(float_to_f16(1.0f + 0x1p-11f) == 0x3c00);
  CHECK(float_to_f16(1.0f + 3 * 0x1p-11f) == 0x3c02);
  CHECK(float_to_f16(65519.0f) == 0x7bff);
  CHECK(float_to_f16(65520.0f) == 0x7c00);
  CHECK(float_to_f16(0x1p-25f) == 0);
  CHECK(float_to_f16(0x1.8p-24f) == 2);
  CHECK(float_to_bf16(std::numeric_limits<float>::max()) == 0x7f80);
}

TEST_CASE("rounding to fp16 in fp32 gives what fp16 holds") {
  std::vector<float> values, rounded;
  for (std::uint64_t bits = 0; bits < 0x100000000u; bits += 65521)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  for (const float edge : {65519.0f, 65520.0f, 0x1p-25f, 0x1.8p-24f, 0x1.ffep-15f, 0x1.fffp-15f})
    values.push_back(edge);
  rounded.resize(values.size());
  round_to_f16(values.data(), rounded.data(), static_cast<std::int64_t>(values.size()));
  int wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float expected = f16_to_float(float_to_f16(values[i]));
    wrong += std::isnan(expected) ? !std::isnan(rounded[i])
                                  : std::bit_cast<std::uint32_t>(expected) !=
                                        std::bit_cast<std::uint32_t>(rounded[i]);
  }
  CHECK(wrong == 0);
}

TEST_CASE("bytes are converted the same at odd addresses") {
  const std::vector<float> values = {1.0f,      -2.5f, 1.01171875f,
                                     0x1p-130f, 3e38f, std::numeric_limits<float>::quiet_NaN()};
  for (const std::size_t begin : {0u, 1u}) {
    std::vector<std::byte> bytes(2 * values.size() + 2);
    const auto stored = std::span(bytes).subspan(begin, 2 * values.size());
    REQUIRE(convert_from_float(values, DType::kBF16, stored).ok());
    std::vector<float> back(values.size());
    REQUIRE(convert_to_float(stored, DType::kBF16, back).ok());
    for (std::size_t i = 0; i < values.size(); ++i) {
      CAPTURE(i);
      CHECK(std::bit_cast<std::uint32_t>(back[i]) ==
            std::bit_cast<std::uint32_t>(bf16_to_float(float_to_bf16(values[i]))));
    }
  }
}

TEST_CASE("arrays are converted as single values are, wherever they begin") {
  // Every sign and exponent, with mantissas around the ties; infinities and NaNs with payloads.
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000; high += 3)
    for (const std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>(high << 16 | low));
  const auto count = static_cast<std::int64_t>(values.size());
  for (const std::int64_t begin : {0, 1, 17}) {
    const std::int64_t n = count - begin;
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(n));
    std::vector<float> back(bits.size()), rounded(bits.size());
    bf16_from_float(values.data() + begin, bits.data(), n);
    float_from_bf16(bits.data(), back.data(), n);
    round_to_bf16(values.data() + begin, rounded.data(), n);
    int wrong = 0;
    for (std::size_t i = 0; i < bits.size(); ++i) {
      const std::uint16_t expected = float_to_bf16(values[i + static_cast<std::size_t>(begin)]);
      const auto expected_float = std::bit_cast<std::uint32_t>(bf16_to_float(expected));
      wrong += bits[i] != expected || std::bit_cast<std::uint32_t>(back[i]) != expected_float ||
               std::bit_cast<std::uint32_t>(rounded[i]) != expected_float;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("buffers: sizes must fit, integers are refused") {
  const std::vector<float> values = {1.5f, -2.0f, 0.25f};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    std::vector<std::byte> bytes(3 * dtype_size(dtype));
    std::vector<float> back(3);
    CHECK(convert_from_float(values, dtype, bytes).ok());
    CHECK(convert_to_float(bytes, dtype, back).ok());
    CHECK(back == values);
    CHECK(convert_to_float(std::span(bytes).first(5), dtype, back).code() ==
          Code::kInvalidArgument);
  }
  std::vector<std::byte> bytes(12);
  std::vector<float> back(3);
  CHECK(convert_to_float(bytes, DType::kI32, back).code() == Code::kUnsupported);
}

}  // namespace
}  // namespace troupe::train

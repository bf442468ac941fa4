// Matrices in 4 bits, against bitsandbytes (tests/golden/quantized, made by
// tools/golden/make_quantized_goldens.py).

#include "train/tensor/quantized.h"

#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/safetensors_file.h"
#include "tests/support/test_data.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

std::map<std::string, std::string> golden_matrices() {
  std::map<std::string, std::string> tensors;
  for (auto& [name, stored] : troupe::tests::stored_tensors(
           troupe::tests::source_dir() + "/tests/golden/quantized/matrices.safetensors"))
    tensors[name] = std::move(stored.bytes);
  return tensors;
}

std::vector<float> floats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

struct Quantized {
  Quantized(const std::vector<float>& values, Quantization quantization)
      : parts(quantization, std::ssize(values)), bytes(parts.bytes) {
    quantize(values, quantization, bytes);
    matrix = {quantization, bytes.data(), std::ssize(values)};
  }
  std::string part(std::size_t at, std::size_t size) const {
    return {reinterpret_cast<const char*>(bytes.data()) + at, size};
  }
  QuantizedParts parts;
  std::vector<std::byte> bytes;
  QuantizedMatrix matrix;
};

std::vector<float> values_of(const QuantizedMatrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.elements));
  dequantize(matrix, 0, values);
  return values;
}

TEST_CASE("codes, scales and values equal bitsandbytes'") {
  const auto golden = golden_matrices();
  int matrices = 0;
  for (const auto& [name, stored] : golden) {
    if (name.find('.') != std::string::npos || name == "map") continue;
    ++matrices;
    const std::vector<float> values = floats(stored);
    for (const FourBitCode code : {FourBitCode::kNf4, FourBitCode::kFp4}) {
      const std::string at = name + "." + std::string(four_bit_code_name(code));
      CAPTURE(at);
      const Quantized plain(values, {code, false}), nested(values, {code, true});
      const std::string& codes = golden.at(at + ".codes");
      CHECK(plain.part(0, codes.size()) == codes);
      CHECK(nested.part(0, codes.size()) == codes);
      const std::string& absmax = golden.at(at + ".absmax");
      CHECK(plain.part(plain.parts.absmax, absmax.size()) == absmax);
      const std::string& greatest = golden.at(name + ".nested_absmax");
      const std::string& offset = golden.at(name + ".offset");
      const std::string& codes8 = golden.at(name + ".nested");
      CHECK(nested.part(nested.parts.absmax, codes8.size()) == codes8);
      // The mean of many numbers is rounded by the order of its sum: PyTorch's is another on
      // processors with wider registers.
      const auto near = [](const std::vector<float>& ours, const std::string& expected) {
        const std::vector<float> theirs = floats(expected);
        REQUIRE(ours.size() == theirs.size());
        for (std::size_t i = 0; i < ours.size(); ++i)
          CHECK(ours[i] == doctest::Approx(theirs[i]).epsilon(3e-7));
      };
      const auto part = [&](std::size_t at_byte, const std::string& like) {
        return floats(nested.part(at_byte, like.size()));
      };
      near(part(nested.parts.nested_absmax, greatest), greatest);
      near(part(nested.parts.offset, offset), offset);
      if (!golden.contains(at + ".values")) continue;
      CHECK(values_of(plain.matrix) == floats(golden.at(at + ".values")));
      near(values_of(nested.matrix), golden.at(at + ".nested_values"));
    }
  }
  CHECK(matrices == 6);
}

TEST_CASE("any part of a matrix has the values of the whole, in bf16 rounded") {
  const std::vector<float> stored = floats(golden_matrices().at("uneven"));
  for (const bool is_nested : {false, true}) {
    const Quantized quantized(stored, {FourBitCode::kNf4, is_nested});
    const std::vector<float> whole = values_of(quantized.matrix);
    for (const auto& [begin, count] :
         {std::pair(0, 1), {2, 63}, {62, 4}, {64, 64}, {1000, 777}, {4098, 2}}) {
      std::vector<float> part(static_cast<std::size_t>(count));
      dequantize(quantized.matrix, begin, std::span(part));
      CHECK(std::equal(part.begin(), part.end(), whole.begin() + begin));
      std::vector<std::uint16_t> narrow(part.size());
      dequantize(quantized.matrix, begin, std::span(narrow));
      for (std::size_t i = 0; i < part.size(); ++i) CHECK(narrow[i] == float_to_bf16(part[i]));
    }
  }
}

TEST_CASE("a large matrix takes 4.127 bits a weight with nesting, 4.5 without") {
  constexpr std::int64_t kElements = 4096 * 4096;
  const auto bits = [](Quantization quantization) {
    return 8.0 * static_cast<double>(QuantizedParts(quantization, kElements).bytes) / kElements;
  };
  CHECK(bits({FourBitCode::kNf4, true}) == doctest::Approx(4.127).epsilon(1e-4));
  CHECK(bits({FourBitCode::kFp4, false}) == doctest::Approx(4.5).epsilon(1e-4));
}

}  // namespace
}  // namespace troupe::train

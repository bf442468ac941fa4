// Matrices in 4 and 8 bits, against bitsandbytes (tests/golden/quantized, made by
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
  // Without a width it is one row.
  Quantized(const std::vector<float>& values, Quantization quantization, std::int64_t width = 0)
      : parts(quantization, width ? std::ssize(values) / width : 1,
              width ? width : std::ssize(values)),
        bytes(parts.bytes) {
    const std::int64_t columns = width ? width : std::ssize(values);
    quantize(values, columns, quantization, bytes);
    matrix = {quantization, bytes.data(), std::ssize(values) / columns, columns};
  }
  std::string part(std::size_t at, std::size_t size) const {
    return {reinterpret_cast<const char*>(bytes.data()) + at, size};
  }
  QuantizedParts parts;
  std::vector<std::byte> bytes;
  QuantizedMatrix matrix;
};

std::vector<float> values_of(const QuantizedMatrix& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.elements()));
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
    for (const WeightCode code : {WeightCode::kNf4, WeightCode::kFp4}) {
      const std::string at = name + "." + std::string(weight_code_name(code));
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
      CHECK(nested.part(nested.parts.nested_absmax, greatest.size()) == greatest);
      CHECK(nested.part(nested.parts.offset, offset.size()) == offset);
      if (!golden.contains(at + ".values")) continue;
      CHECK(values_of(plain.matrix) == floats(golden.at(at + ".values")));
      CHECK(values_of(nested.matrix) == floats(golden.at(at + ".nested_values")));
    }
  }
  CHECK(matrices == 6);
}

TEST_CASE("in 8 bits: codes, scales and values equal bitsandbytes'") {
  const auto golden = golden_matrices();
  int matrices = 0;
  for (const auto& [name, stored] : golden) {
    if (name.find('.') != std::string::npos || name == "map") continue;
    CAPTURE(name);
    ++matrices;
    const std::vector<float> values = floats(stored);
    const std::string at = name + ".int8";
    const std::string& absmax = golden.at(at + ".absmax");
    const std::int64_t rows = std::ssize(floats(absmax));
    const Quantized quantized(values, {.code = WeightCode::kInt8}, std::ssize(values) / rows);
    CHECK(quantized.part(0, values.size()) == golden.at(at + ".codes"));
    CHECK(quantized.part(quantized.parts.absmax, absmax.size()) == absmax);
    if (golden.contains(at + ".values"))
      CHECK(values_of(quantized.matrix) == floats(golden.at(at + ".values")));
  }
  CHECK(matrices == 6);
}

TEST_CASE("any part of a matrix has the values of the whole, in bf16 rounded") {
  const std::vector<float> stored = floats(golden_matrices().at("uneven"));
  for (const Quantization& quantization :
       {Quantization{WeightCode::kNf4, false}, {WeightCode::kNf4, true}, {WeightCode::kInt8}}) {
    const Quantized quantized(stored, quantization, 100);
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
  constexpr std::int64_t kSide = 4096;
  const auto bits = [](Quantization quantization) {
    return 8.0 * static_cast<double>(QuantizedParts(quantization, kSide, kSide).bytes) /
           (kSide * kSide);
  };
  CHECK(bits({WeightCode::kNf4, true}) == doctest::Approx(4.127).epsilon(1e-4));
  CHECK(bits({WeightCode::kFp4, false}) == doctest::Approx(4.5).epsilon(1e-4));
  CHECK(bits({WeightCode::kInt8}) == doctest::Approx(8.008).epsilon(1e-4));
}

}  // namespace
}  // namespace troupe::train

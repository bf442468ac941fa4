// Models as bitsandbytes saves them (tests/golden/quantized, made by
// tools/golden/make_quantized_goldens.py), beside the one that they were made of.

#include "train/checkpoint/quantized_weights.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/support/faulty_file_system.h"
#include "tests/support/test_data.h"

namespace troupe::train {
namespace {

using troupe::tests::FaultyFileSystem;

std::string golden(const std::string& name) {
  return troupe::tests::source_dir() + "/tests/golden/quantized/" + name;
}

std::vector<float> base_values(std::string_view name) {
  PosixFileSystem files;
  const auto reader = TensorReader::open_model(files, golden("base")).value();
  std::vector<float> values(static_cast<std::size_t>(reader.find(name)->elements));
  REQUIRE(reader.read(name, 0, values).ok());
  return values;
}

TEST_CASE("what bitsandbytes has saved is what is quantised here") {
  PosixFileSystem files;
  for (const auto& [folder, quantization] :
       {std::pair("base-nf4", Quantization{WeightCode::kNf4, true}),
        {"base-fp4", {WeightCode::kFp4, false}},
        {"base-int8", {WeightCode::kInt8, false}}}) {
    CAPTURE(folder);
    const auto reader = TensorReader::open_model(files, golden(folder)).value();
    const auto quantized = QuantizedWeights::find(reader).value();
    // As many, and of the same shapes, as the base has.
    const auto base = TensorReader::open_model(files, golden("base")).value();
    std::vector<ExpectedTensor> expected;
    for (const TensorInfo& info : base.weights()) expected.push_back({info.name, info.shape});
    CHECK(check_weights(quantized.weights(), expected).ok());
    int matrices = 0;
    for (const TensorInfo& info : base.weights()) {
      const StoredMatrix* matrix = quantized.matrix(info.name);
      if (!matrix) continue;
      ++matrices;
      CAPTURE(info.name);
      CHECK(matrix->quantization == quantization);
      const QuantizedParts parts(quantization, matrix->rows, matrix->width);
      const auto bytes = quantized.read(reader, info.name).value();
      std::vector<std::byte> ours(parts.bytes);
      const std::vector<float> values = base_values(info.name);
      quantize(values, matrix->width, quantization, ours);
      CHECK(bytes == ours);
      std::vector<float> near(values.size()), part(7);
      REQUIRE(QuantizedWeights::values(*matrix, bytes, 0, near).ok());
      REQUIRE(QuantizedWeights::values(*matrix, bytes, 65, part).ok());
      CHECK(std::equal(part.begin(), part.end(), near.begin() + 65));
      for (std::size_t i = 0; i < values.size(); ++i) CHECK(std::abs(near[i] - values[i]) < 0.3);
    }
    CHECK(matrices == (std::string_view(folder) == "base-fp4" ? 6 : 7));
  }
}

TEST_CASE("what is not read is refused with the tensor's name") {
  PosixFileSystem posix;
  const auto outcome = [&](const std::string& folder, std::string_view from, std::string_view to) {
    FaultyFileSystem files;
    REQUIRE(files.create_directories("m").ok());
    std::string weights = posix.read(golden(folder) + "/model.safetensors", 1 << 20).value();
    const std::size_t at = weights.find(from);
    REQUIRE(at != std::string::npos);
    REQUIRE(from.size() == to.size());
    weights.replace(at, from.size(), to);
    REQUIRE(write_file_atomically(files, "m/model.safetensors", weights).ok());
    const auto reader = TensorReader::open_model(files, "m");
    REQUIRE(reader.ok());
    const auto quantized = QuantizedWeights::find(*reader);
    if (!quantized.ok()) return quantized.status().to_string();
    std::string all;
    for (const TensorInfo& info : quantized->weights())
      if (quantized->matrix(info.name))
        if (const auto bytes = quantized->read(*reader, info.name); !bytes.ok())
          all += bytes.status().to_string() + "\n";
    return all;
  };
  const auto says = [&](const std::string& text, std::string_view part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, text);
  };
  const std::string layer = "model.layers.0.self_attn.q_proj";
  says(outcome("base-nf4", "\"blocksize\": 64", "\"blocksize\": 32"), "blocks of 32 and 256");
  says(outcome("base-nf4", "\"shape\": [32, 32]", "\"shape\": [32, 99]"),
       "does not have the codes of 3168 elements");
  says(outcome("base-nf4", "\"shape\": [32, 32]", "\"shape\": [32,-32]"), "beyond all models");
  says(outcome("base-nf4", "\"quant_type\": \"nf4\"", "\"quant_type\": nf4\"\""), "quant_state");
  says(outcome("base-nf4", layer + ".weight.absmax", layer + ".weight.absmin"),
       layer + ".weight.absmax: is missing");
  says(outcome("base-nf4", "bitsandbytes__nf4", "bitsandbytes__af4"), "codes of type af4");
  says(outcome("base-int8", layer + ".weight\":{\"dtype\":\"I8\"",
               layer + ".weight\":{\"dtype\":\"U8\""),
       "is no matrix of signed bytes");
}

}  // namespace
}  // namespace troupe::train

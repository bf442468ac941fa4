#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "runtime/base/json.h"
#include "tests/support/golden_exports.h"
#include "tests/support/test_data.h"
#include "tests/train/adapters/adapter_models.h"
#include "train/adapters/adapter_files.h"
#include "train/adapters/adapter_merge.h"
#include "train/adapters/adapter_targets.h"
#include "train/model/initialize.h"

namespace troupe::train {
namespace {

// Of lora_A (64, 64), as an adapter's tensors begin (train/model/adapter_tensors.h).
void first_values(const std::string& name, std::uint64_t seed, std::int64_t begin,
                  std::span<float> out) {
  ParameterInfo parameter;
  parameter.name = name;
  parameter.elements = 64 * 64;
  parameter.initial = {InitialValue::Kind::kUniform, 1.0 / 8};
  initialize_parameter(parameter, 0.02, seed, begin, out);
}

TEST_CASE("A begins uniform within 1/√in, by seed, name and index alone") {
  std::vector<float> whole(4096);
  first_values("m.lora_A.weight", 42, 0, whole);
  double sum = 0, squares = 0;
  float least = 1, most = -1;
  for (const float value : whole) {
    sum += value;
    squares += static_cast<double>(value) * value;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  CHECK(least >= -0.125f);
  CHECK(most < 0.125f);
  CHECK(least < -0.12f);
  CHECK(most > 0.12f);
  CHECK(std::abs(sum / 4096) < 0.005);
  CHECK(squares / 4096 == doctest::Approx(0.125 * 0.125 / 3).epsilon(0.05));

  std::vector<float> part(100);
  first_values("m.lora_A.weight", 42, 1001, part);
  CHECK(std::equal(part.begin(), part.end(), whole.begin() + 1001));
  first_values("n.lora_A.weight", 42, 1001, part);
  CHECK_FALSE(std::equal(part.begin(), part.end(), whole.begin() + 1001));
  first_values("m.lora_A.weight", 43, 1001, part);
  CHECK_FALSE(std::equal(part.begin(), part.end(), whole.begin() + 1001));
}

// W (2, 3), A (2, 3), B (2, 2), scale ½: W + s·B·A is worked out by hand.
struct SmallMerge {
  std::vector<float> weight = {1, 2, 3, 4, 5, 6};
  std::vector<float> a = {1, 0, 2, 0, 1, 1};
  std::vector<float> b = {2, 4, 0, 6};
  std::vector<float> merged = {2, 4, 7, 4, 8, 9};
  LowRankUpdate update{.rank = 2, .in = 3, .out = 2, .scale = 0.5, .a = a, .b = b};
};

TEST_CASE("merging adds s·B·A, of transposed weights too") {
  SmallMerge m;
  merge_adapter(m.weight, m.update);
  CHECK(m.weight == m.merged);

  SmallMerge t;
  t.weight = {1, 4, 2, 5, 3, 6};
  t.update.transposed = true;
  merge_adapter(t.weight, t.update);
  CHECK(t.weight == std::vector<float>{2, 4, 4, 8, 7, 9});
}

TEST_CASE("DoRA: rows of the sum get the length of the magnitude") {
  for (const bool transposed : {false, true}) {
    SmallMerge m;
    if (transposed) m.weight = {1, 4, 2, 5, 3, 6};
    m.update.transposed = transposed;
    const std::vector<float> norms = adapted_row_norms(m.weight, m.update);
    CHECK(norms == std::vector<float>{std::sqrt(69.0f), std::sqrt(161.0f)});
    // Its magnitude at the beginning changes nothing of the sum.
    m.update.magnitude = norms;
    auto weight = m.weight;
    merge_adapter(weight, m.update);
    CHECK(weight[0] == 2);
    CHECK(weight[5] == 9);
    const std::vector<float> doubled = {2 * norms[0], 3 * norms[1]};
    m.update.magnitude = doubled;
    merge_adapter(m.weight, m.update);
    CHECK(m.weight[0] == 4);
    CHECK(m.weight[5] == doctest::Approx(27));
  }
}

std::vector<float> floats_of(const StoredTensor& tensor) {
  REQUIRE(tensor.dtype == DType::kF32);
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

// LLaMA-Factory's export of `adapters`, tensor by tensor: the first values, and the L2 norm.
TEST_CASE("merged weights are those of LLaMA-Factory's exports") {
  const auto golden = troupe::tests::test_data("lf_golden");
  const auto base = troupe::tests::test_data("stories260K/hf");
  if (!golden || !base) return;
  PosixFileSystem files;
  const ModelConfig model = tests::model_of(files, *base);
  const auto file = SafetensorsFile::open(files, *base + "/model.safetensors");
  REQUIRE_MESSAGE(file.ok(), file.status().to_string());
  for (const auto& [name, adapters] : tests::golden_exports()) {
    CAPTURE(name);
    // Rounded after the sum.
    const double tolerance = name.ends_with("bf16") ? 0x1p-8 : 1e-5;
    const std::string config = tests::file_text(files, *golden + "/" + name + "/config.yaml");
    for (const auto& adapter : adapters) REQUIRE(config.find("inits/" + adapter) != config.npos);
    std::map<std::string, std::vector<float>> weights;
    for (const auto& adapter : adapters) {
      const auto opened = open_adapter(files, *golden + "/inits/" + adapter, "", model);
      REQUIRE_MESSAGE(opened.ok(), opened.status().to_string());
      std::map<std::string, std::vector<float>> tensors;
      for (const auto& tensor : opened->tensors) tensors[tensor.name] = floats_of(tensor);
      for (const std::string& whole : opened->trainables.tensors) weights[whole] = tensors[whole];
      for (const LoraModule& lora : opened->trainables.lora) {
        const StoredTensor* stored = file->find(lora.module + ".weight");
        REQUIRE(stored);
        auto& weight = weights.try_emplace(stored->name, floats_of(*stored)).first->second;
        merge_adapter(weight, {.rank = lora.rank,
                               .in = stored->shape[1],
                               .out = stored->shape[0],
                               .scale = lora.scale,
                               .a = tensors[lora.module + ".lora_A.weight"],
                               .b = tensors[lora.module + ".lora_B.weight"],
                               .magnitude = tensors[lora.module + ".lora_magnitude_vector"]});
      }
    }
    const json::Value stats =
        json::parse(tests::file_text(files, *golden + "/" + name + "/merged_stats.json"), "stats")
            .value();
    int compared = 0;
    for (const auto& member : stats.as_object()) {
      const auto found = weights.find(std::string(member.key()));
      if (found == weights.end()) continue;
      ++compared;
      CAPTURE(found->first);
      double squares = 0;
      for (const float value : found->second) squares += static_cast<double>(value) * value;
      CHECK(
          std::sqrt(squares) ==
          doctest::Approx(json::find_number(member.value(), "l2").value()).epsilon(tolerance / 10));
      const auto& first = json::find(member.value(), "first")->as_array();
      for (std::size_t i = 0; i < first.size(); ++i)
        CHECK(found->second[i] == doctest::Approx(first[i].to_number<double>()).epsilon(tolerance));
    }
    CHECK(compared > 0);
  }
}

}  // namespace
}  // namespace troupe::train

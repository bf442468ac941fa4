#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

#include "runtime/base/hash.h"
#include "train/model/initialize.h"
#include "train/model/model_config.h"
#include "train/model/parameter_layout.h"
#include "train/model/rope.h"

namespace troupe::train {
namespace {

json::Value small() {
  return json::parse(R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 32,
      "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "my_key": [1]})",
                     "test")
      .value();
}

TEST_CASE("defaults and round trip of config.json") {
  const ModelConfig config = ModelConfig::from_json(small(), "config.json").value();
  CHECK(config.num_key_value_heads == 4);
  CHECK(config.head_dim == 8);
  CHECK(config.norm_eps == 1e-6);
  CHECK(config.rope.theta == 10000.0);
  CHECK(!config.tie_word_embeddings);
  const json::Object out = config.to_json();
  CHECK(out.at("my_key") == json::Value(json::Array{1}));
  const ModelConfig again = ModelConfig::from_json(out, "again").value();
  CHECK(again.to_json() == out);
}

TEST_CASE("layout: units, alignment, tiles, decay") {
  const ParameterLayout layout(ModelConfig::from_json(small(), "config.json").value());
  REQUIRE(layout.units().size() == 4);
  std::int64_t offset = 0;
  for (const UnitInfo& unit : layout.units()) {
    CHECK(unit.flat_offset == offset);
    CHECK(unit.elements % kTileElements == 0);
    offset += unit.elements;
  }
  CHECK(offset == layout.total_elements());
  for (const ParameterInfo& parameter : layout.parameters()) {
    CHECK(parameter.offset_elements % kParameterAlignElements == 0);
    CHECK(layout.at_flat_offset(layout.flat_offset(parameter)) == &parameter);
    CHECK(layout.at_flat_offset(layout.flat_offset(parameter) + parameter.elements - 1) ==
          &parameter);
    CHECK(layout.find(parameter.name) == &parameter);
    for (const ParameterGroups::Range& range : layout.groups().ranges())
      if (layout.flat_offset(parameter) >= range.begin && layout.flat_offset(parameter) < range.end)
        CHECK(layout.groups().of(range) == parameter.group);
  }
  CHECK(layout.at_flat_offset(layout.total_elements() - 1) == nullptr);
  CHECK(layout.parameter_elements() == 2 * 3200 + 2 * (4 * 1024 + 3 * 1280 + 64) + 32);
  CHECK(layout.groups().ranges().front().begin == 0);
  CHECK(layout.groups().end() == layout.total_elements());
}

TEST_CASE("the rule of weight decay") {
  for (const char* name :
       {"model.norm.weight", "model.layers.0.input_layernorm.weight", "norm.weight",
        "x.q_norm.weight", "a.bias", "X.RMSNorm.weight", "model.norm"})
    CHECK_FALSE(parameter_decays(name));
  for (const char* name : {"lm_head.weight", "model.embed_tokens.weight", "normal.weight",
                           "model.layers.0.mlp.up_proj.weight", "xnorm.weight"})
    CHECK(parameter_decays(name));
}

TEST_CASE("initial weights depend on seed, name and index alone") {
  const ParameterLayout layout(ModelConfig::from_json(small(), "config.json").value());
  const ParameterInfo& embedding = *layout.find("model.embed_tokens.weight");
  std::vector<float> whole(3200), part(101), other(3200);
  initialize_parameter(embedding, 0.02, 5, 0, whole);
  initialize_parameter(embedding, 0.02, 5, 77, part);
  initialize_parameter(*layout.find("lm_head.weight"), 0.02, 5, 0, other);
  CHECK(std::equal(part.begin(), part.end(), whole.begin() + 77));
  CHECK(whole != other);
  double sum = 0, squares = 0;
  for (const float x : whole) sum += x, squares += static_cast<double>(x) * x;
  CHECK(std::abs(sum / 3200) < 0.0015);
  CHECK(std::sqrt(squares / 3200) == doctest::Approx(0.02).epsilon(0.05));
}

// The same numbers with the library's functions, one by one.
double normal_by_definition(std::uint64_t stream, std::uint64_t index) {
  const auto mix = [](std::uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  };
  const auto unit = [](std::uint64_t bits) {
    return (static_cast<double>(bits >> 11) + 1.0) * 0x1p-53;
  };
  const std::uint64_t bits = mix(stream + (index / 2) * 2 * 0x9e3779b97f4a7c15u);
  const double radius = std::sqrt(-2.0 * std::log(unit(bits)));
  const double angle = 2.0 * std::numbers::pi * unit(mix(bits ^ stream));
  return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

TEST_CASE("initial weights are normal numbers, whatever way a shard is cut") {
  const ParameterLayout layout(ModelConfig::from_json(small(), "config.json").value());
  const ParameterInfo& embedding = *layout.find("model.embed_tokens.weight");
  std::vector<float> whole(3200);
  initialize_parameter(embedding, 1.0, 5, 0, whole);
  std::uint64_t stream = 5 ^ xxh3_64(bytes_of(embedding.name));
  stream += 0x9e3779b97f4a7c15u;
  stream = (stream ^ (stream >> 30)) * 0xbf58476d1ce4e5b9u;
  stream = (stream ^ (stream >> 27)) * 0x94d049bb133111ebu;
  stream ^= stream >> 31;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const double expected = normal_by_definition(stream, i);
    CAPTURE(i);
    REQUIRE(std::abs(whole[i] - expected) <= 1e-7 * std::abs(expected) + 1e-14);
  }
  for (const std::size_t begin : {0, 1, 2, 255, 256, 257, 1000}) {
    for (const std::size_t count : {1, 2, 3, 254, 255, 256, 257, 511, 512, 513, 2000}) {
      std::vector<float> part(count);
      initialize_parameter(embedding, 1.0, 5, static_cast<std::int64_t>(begin), part);
      REQUIRE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<long>(begin)));
    }
  }
}

}  // namespace
}  // namespace troupe::train

// Agreement with PyTorch (tests/golden/model, made by tools/golden/make_model_goldens.py).

#include "runtime/base/json.h"
#include "tests/support/test_data.h"
#include "tests/train/model/model_fixture.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/gradient_norm.h"

namespace troupe::train::tests {
namespace {

struct GoldenBatch {
  std::vector<std::int32_t> ids, labels, positions, segments;
};

struct Golden {
  explicit Golden(const std::string& name) {
    const std::string stem = troupe::tests::source_dir() + "/tests/golden/model/" + name;
    PosixFileSystem files;
    document = json::parse(files.read(stem + ".json", 1 << 20).value(), name).value();
    tensors = load_tensors(stem + ".safetensors");
    config = ModelConfig::from_json(document.at("config"), name).value();
    for (const json::Value& value : document.at("batches").as_array())
      batches.push_back({integers(value, "ids"), integers(value, "labels"),
                         integers(value, "positions"), integers(value, "segments")});
  }
  static std::vector<std::int32_t> integers(const json::Value& value, std::string_view key) {
    std::vector<std::int32_t> out;
    if (value.at(key).is_array())
      for (const json::Value& number : value.at(key).as_array())
        out.push_back(number.to_number<std::int32_t>());
    return out;
  }
  MicroBatch batch(std::size_t step) const {
    const GoldenBatch& b = batches[step];
    return {document.at("rows").as_int64(),
            document.at("length").as_int64(),
            b.ids,
            b.labels,
            b.positions,
            b.segments};
  }
  double number(std::string_view list, std::size_t step) const {
    return document.at(list).at(step).to_number<double>();
  }

  json::Value document;
  Tensors tensors;
  ModelConfig config;
  std::vector<GoldenBatch> batches;
};

constexpr const char* kCases[] = {"llama_gqa_untied", "llama_gqa_tied"};

double run(ModelFixture& fixture, Activations& activations, const MicroBatch& batch) {
  std::fill(fixture.gradients.begin(), fixture.gradients.end(), 0.0f);
  const std::int64_t targets = count_targets(batch);
  const LossSum sum =
      fixture.model
          ->forward_backward(batch, fixture.units, CrossEntropyLoss(),
                             static_cast<float>(1.0 / static_cast<double>(targets)), activations)
          .value();
  CHECK(sum.target_count == targets);
  return sum.loss_sum / static_cast<double>(targets);
}

TEST_CASE("loss and every gradient equal PyTorch's") {
  for (const char* name : kCases) {
    CAPTURE(name);
    const Golden golden(name);
    ModelFixture fixture(golden.config);
    fixture.load(golden.tensors, "weight.");
    const MicroBatch batch = golden.batch(0);
    Activations activations(golden.config, {batch.rows, batch.length, true, false},
                            *fixture.operators);
    CHECK(run(fixture, activations, batch) ==
          doctest::Approx(golden.number("losses", 0)).epsilon(1e-5));
    for (const ParameterInfo& info : fixture.model->layout().parameters()) {
      CAPTURE(info.name);
      CHECK(relative_error(fixture.slice(fixture.gradients, info.name),
                           golden.tensors.at("gradient." + info.name)) < 1e-4);
    }
  }
}

TEST_CASE("ten AdamW steps equal PyTorch's") {
  for (const char* name : kCases) {
    CAPTURE(name);
    const Golden golden(name);
    ModelFixture fixture(golden.config);
    fixture.load(golden.tensors, "weight.");
    const std::vector<DecayRange>& ranges = fixture.model->layout().decay_ranges();
    std::vector<float> m(fixture.parameters.size()), v(fixture.parameters.size());
    Activations activations(golden.config, {3, 20, true, true}, *fixture.operators);
    for (std::size_t step = 0; step < golden.batches.size(); ++step) {
      CAPTURE(step);
      CHECK(run(fixture, activations, golden.batch(step)) ==
            doctest::Approx(golden.number("losses", step)).epsilon(1e-4));
      std::vector<double> sums;
      for (std::size_t at = 0; at < fixture.gradients.size(); at += kTileElements)
        sums.push_back(
            tile_sum_of_squares(std::span(fixture.gradients).subspan(at, kTileElements)));
      const GradientNorm norm = combine_tile_sums(sums);
      CHECK(norm.norm == doctest::Approx(golden.number("grad_norms", step)).epsilon(1e-4));
      CHECK(!norm.first_non_finite_tile);
      adamw_update({.learning_rate = 1e-2,
                    .beta1 = 0.9,
                    .beta2 = 0.95,
                    .epsilon = 1e-8,
                    .weight_decay = 0.1,
                    .step = static_cast<std::int64_t>(step) + 1,
                    .gradient_scale = clip_coefficient(norm.norm, 1.0)},
                   ranges, 0, fixture.parameters, fixture.gradients, m, v);
    }
    for (const ParameterInfo& info : fixture.model->layout().parameters()) {
      CAPTURE(info.name);
      CHECK(relative_error(fixture.slice(fixture.parameters, info.name),
                           golden.tensors.at("final." + info.name)) < 1e-4);
    }
  }
}

}  // namespace
}  // namespace troupe::train::tests

// Agreement with HF transformers (tests/golden/model, made by tools/golden/make_model_goldens.py).

#include "runtime/base/suggest.h"
#include "tests/support/test_data.h"
#include "tests/train/model/model_fixture.h"
#include "train/model/generator.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/gradient_norm.h"

namespace troupe::train::tests {
namespace {

struct GoldenBatch {
  explicit GoldenBatch(const json::Value& value)
      : ids(integers(value, "ids")),
        labels(integers(value, "labels")),
        positions(integers(value, "positions")),
        segments(integers(value, "segments")) {}
  static std::vector<std::int32_t> integers(const json::Value& value, std::string_view key) {
    std::vector<std::int32_t> out;
    if (const json::Value* found = json::find(value, key))
      for (const json::Value& number : found->as_array())
        out.push_back(number.to_number<std::int32_t>());
    return out;
  }
  std::vector<std::int32_t> ids, labels, positions, segments;
};

struct Golden {
  explicit Golden(const std::string& name) {
    const std::string folder = troupe::tests::source_dir() + "/tests/golden/model/" + name;
    PosixFileSystem files;
    document = json::parse(files.read(folder + "/golden.json", 1 << 20).value(), name).value();
    config = ModelConfig::parse(files.read(folder + "/config.json", 1 << 20).value(), name).value();
    weights = load_tensors(folder + "/model.safetensors");
    if (files.exists(folder + "/golden.safetensors"))
      tensors = load_tensors(folder + "/golden.safetensors");
    // Steps of micro-batches; most cases have one a step.
    if (const json::Value* list = json::find(document, "batches"))
      for (const json::Value& value : list->as_array()) steps.push_back({GoldenBatch(value)});
    if (const json::Value* list = json::find(document, "steps_data"))
      for (const json::Value& step : list->as_array())
        for (steps.emplace_back(); const json::Value& value : step.as_array())
          steps.back().emplace_back(value);
  }
  std::int64_t rows() const { return document.at("rows").as_int64(); }
  std::int64_t length() const { return document.at("length").as_int64(); }
  MicroBatch micro_batch(std::size_t step, std::size_t index = 0) const {
    const GoldenBatch& b = steps[step][index];
    return {rows(), length(), b.ids, b.labels, b.positions, b.segments};
  }
  double number(std::string_view list, std::size_t step) const {
    return document.at(list).at(step).to_number<double>();
  }

  json::Value document;
  ModelConfig config;
  Tensors weights, tensors;
  std::vector<std::vector<GoldenBatch>> steps;
};

constexpr const char* kCases[] = {"llama",        "llama_llama3", "llama_linear_bias",
                                  "llama_yarn",   "mistral",      "qwen2",
                                  "qwen2_window", "qwen3",        "gemma",
                                  "gemma3_text",  "phi3",         "gpt2",
                                  "gpt2_scaled"};

// The step's mean loss; its gradient is in the fixture.
double run_step(const Golden& golden, std::size_t step, ModelFixture& fixture,
                Activations& activations) {
  std::fill(fixture.gradients.begin(), fixture.gradients.end(), 0.0f);
  std::int64_t targets = 0;
  for (std::size_t i = 0; i < golden.steps[step].size(); ++i)
    targets += count_targets(golden.micro_batch(step, i));
  LossSum sum;
  for (std::size_t i = 0; i < golden.steps[step].size(); ++i) {
    const LossSum part =
        fixture.model
            ->forward_backward(golden.micro_batch(step, i), fixture.units, CrossEntropyLoss(),
                               static_cast<float>(1.0 / static_cast<double>(targets)), activations)
            .value();
    sum.loss_sum += part.loss_sum;
    sum.target_count += part.target_count;
  }
  CHECK(sum.target_count == targets);
  return sum.loss_sum / static_cast<double>(targets);
}

TEST_CASE("logits, loss and every gradient equal transformers'") {
  for (const char* name : kCases) {
    CAPTURE(std::string(name));
    const Golden golden(name);
    ModelFixture fixture(golden.config);
    fixture.load(golden.weights, "");
    Activations activations(golden.config,
                            {.rows_max = golden.rows(), .length_max = golden.length()},
                            *fixture.operators);
    std::vector<float> logits(golden.tensors.at("logits").size());
    REQUIRE(fixture.model->logits(golden.micro_batch(0), fixture.units, activations, logits).ok());
    CHECK(relative_error(logits, golden.tensors.at("logits")) < 1e-5);
    CHECK(run_step(golden, 0, fixture, activations) ==
          doctest::Approx(golden.number("losses", 0)).epsilon(1e-6));
    for (const ParameterInfo& info : fixture.model->layout().parameters()) {
      CAPTURE(info.name);
      CHECK(relative_error(fixture.slice(fixture.gradients, info.name),
                           golden.tensors.at("gradient." + info.name)) < 3e-5);
    }
  }
}

void run_training(const Golden& golden) {
  const auto setting = [&](std::string_view key) {
    return golden.document.at("adamw").at(key).to_number<double>();
  };
  ModelFixture fixture(golden.config);
  fixture.load(golden.weights, "");
  const ParameterGroups& groups = fixture.model->layout().groups();
  std::vector<float> m(fixture.parameters.size()), v(fixture.parameters.size());
  Activations activations(golden.config, {.rows_max = golden.rows(), .length_max = golden.length()},
                          *fixture.operators);
  for (std::size_t step = 0; step < golden.steps.size(); ++step) {
    CAPTURE(step);
    CHECK(run_step(golden, step, fixture, activations) ==
          doctest::Approx(golden.number("losses", step)).epsilon(2e-5));
    std::vector<double> sums;
    for (std::size_t at = 0; at < fixture.gradients.size(); at += kTileElements)
      sums.push_back(tile_sum_of_squares(std::span(fixture.gradients).subspan(at, kTileElements)));
    const GradientNorm norm = combine_tile_sums(sums);
    CHECK(norm.norm == doctest::Approx(golden.number("grad_norms", step)).epsilon(1e-4));
    CHECK(!norm.first_non_finite_tile);
    adamw_update(AdamWStep{.learning_rate = golden.number("learning_rates", step),
                           .beta1 = setting("beta1"),
                           .beta2 = setting("beta2"),
                           .epsilon = setting("eps"),
                           .weight_decay = setting("weight_decay"),
                           .step = static_cast<std::int64_t>(step) + 1,
                           .gradient_scale = clip_coefficient(
                               norm.norm, golden.document.at("max_norm").to_number<double>())},
                 groups, 0, fixture.parameters, fixture.gradients, m, v);
  }
  for (const ParameterInfo& info : fixture.model->layout().parameters()) {
    CAPTURE(info.name);
    // Without rotation a bias of the keys moves all scores of a query alike: its gradient is
    // nothing but rounding, and AdamW makes steps of it.
    if (info.name.ends_with("attn.c_attn.bias")) continue;
    double squares = 0;
    for (const float x : fixture.slice(fixture.parameters, info.name))
      squares += static_cast<double>(x) * x;
    CHECK(std::sqrt(squares) ==
          doctest::Approx(golden.document.at("final_norms").at(info.name).to_number<double>())
              .epsilon(1e-5));
  }
}

TEST_CASE("twenty AdamW steps equal PyTorch's") {
  for (const char* name : kCases) {
    CAPTURE(std::string(name));
    run_training(Golden(name));
  }
  run_training(Golden("train_llama"));
}

TEST_CASE("greedy text equals transformers'") {
  for (const char* name : kCases) {
    CAPTURE(std::string(name));
    const Golden golden(name);
    ModelFixture fixture(golden.config);
    fixture.load(golden.weights, "");
    const std::vector<std::int32_t> expected = GoldenBatch::integers(golden.document, "greedy");
    Generator generator(*fixture.model, *fixture.operators, fixture.units, 20);
    GenerateOptions options;
    options.sampling.temperature = 0;
    options.tokens_max = static_cast<std::int64_t>(expected.size()) - 4;
    SeededRandom random(1);
    const std::span<const std::int32_t> prompt = std::span(expected).first(4);
    std::vector<std::int32_t> text(prompt.begin(), prompt.end());
    for (const std::int32_t id : generator.generate(prompt, options, random).value())
      text.push_back(id);
    CHECK(join_numbers(text, " ") == join_numbers(expected, " "));
  }
}

}  // namespace
}  // namespace troupe::train::tests

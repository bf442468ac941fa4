// Models with dropout: where it acts, that it is one mask wherever it is computed, and that it is
// not there without training.

#include <fmt/format.h>

#include "tests/train/model/model_fixture.h"

namespace troupe::train::tests {
namespace {

ModelConfig gpt2_with(double embedding, double residual, double attention) {
  return ModelConfig::parse(
             fmt::format(R"({{"model_type": "gpt2", "vocab_size": 90, "n_embd": 32, "n_layer": 2,
                 "n_head": 4, "n_positions": 64, "initializer_range": 0.2, "embd_pdrop": {},
                 "resid_pdrop": {}, "attn_pdrop": {}}})",
                         embedding, residual, attention),
             "config.json")
      .value();
}

ModelConfig qwen_with(double attention) {
  return ModelConfig::parse(
             fmt::format(R"({{"model_type": "qwen3", "vocab_size": 90, "hidden_size": 32,
                 "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.2,
                 "attention_dropout": {}}})",
                         attention),
             "config.json")
      .value();
}

// Samples 9, 5, 2 of 20 tokens each: as rows, or one behind the other.
struct DroppedBatch {
  explicit DroppedBatch(bool flat) : batch(3, 20, 90) {
    for (std::size_t i = 0; i < 60; ++i) {
      constexpr std::int32_t kNumbers[] = {9, 5, 2};
      samples.push_back(kNumbers[i / 20]);
      places.push_back(static_cast<std::int32_t>(i % 20));
      parts.push_back(static_cast<std::int32_t>(i / 20));
      if (flat && i % 20 == 0) batch.labels[i] = kIgnoreLabel;
    }
    batch.micro = {3, 20, batch.ids, batch.labels, {}, {}};
    if (flat) batch.micro = {1, 60, batch.ids, batch.labels, places, parts};
    batch.micro.dropout = {.seed = 42, .epoch = 0, .samples = samples, .places = places};
  }
  Batch batch;
  std::vector<std::int32_t> samples, places, parts;
};

using PassOutcome = std::pair<double, std::vector<float>>;

PassOutcome dropped_pass(const ModelConfig& config, const MicroBatch& batch, int threads,
                         Recompute recompute) {
  ModelFixture f(config, threads);
  f.initialize(3);
  Activations activations(config, {3, 20, true, recompute}, *f.operators);
  const LossSum sum =
      f.model->forward_backward(batch, f.units, CrossEntropyLoss(), 0.01f, activations).value();
  return {sum.loss_sum, f.gradients};
}

TEST_CASE("dropout: threads and what is recomputed do not change a bit") {
  for (const bool flat : {false, true}) {
    const DroppedBatch batch(flat);
    for (const ModelConfig& config : {gpt2_with(0.1, 0.2, 0.3), qwen_with(0.3)}) {
      const auto one = dropped_pass(config, batch.batch.micro, 1, Recompute::kNothing);
      CHECK(one == dropped_pass(config, batch.batch.micro, 2, Recompute::kCheapOperators));
      CHECK(one == dropped_pass(config, batch.batch.micro, 2, Recompute::kLayers));
    }
  }
}

TEST_CASE("dropout: a sample's masks are its own, in whatever rows it is computed") {
  const DroppedBatch rows(false), flat(true);
  for (const ModelConfig& config : {gpt2_with(0.1, 0.2, 0.3), qwen_with(0.3)}) {
    const PassOutcome expected = dropped_pass(config, rows.batch.micro, 1, Recompute::kNothing);
    const PassOutcome joined = dropped_pass(config, flat.batch.micro, 1, Recompute::kNothing);
    CHECK(joined.first == doctest::Approx(expected.first).epsilon(1e-5));
    CHECK(relative_error(joined.second, expected.second) < 2e-5);
    // Sample by sample, as on three ranks.
    PassOutcome sum{0, std::vector<float>(expected.second.size())};
    for (std::size_t i = 0; i < 3; ++i) {
      const auto part = [&](const auto& all) { return std::span(all).subspan(20 * i, 20); };
      MicroBatch one{1, 20, part(rows.batch.ids), part(rows.batch.labels), {}, {}};
      one.dropout = rows.batch.micro.dropout;
      one.dropout.samples = part(rows.samples), one.dropout.places = part(rows.places);
      const PassOutcome got = dropped_pass(config, one, 1, Recompute::kLayers);
      sum.first += got.first;
      for (std::size_t k = 0; k < sum.second.size(); ++k) sum.second[k] += got.second[k];
    }
    CHECK(sum.first == doctest::Approx(expected.first).epsilon(1e-5));
    CHECK(relative_error(sum.second, expected.second) < 2e-5);
  }
}

TEST_CASE("dropout: seed, epoch, sample and every probability count") {
  const DroppedBatch batch(false);
  const ModelConfig config = gpt2_with(0.1, 0.2, 0.3);
  const auto loss = [&](const ModelConfig& of, const MicroBatch& micro) {
    return dropped_pass(of, micro, 1, Recompute::kNothing).first;
  };
  const double expected = loss(config, batch.batch.micro);
  MicroBatch other = batch.batch.micro;
  other.dropout.seed = 43;
  CHECK(loss(config, other) != expected);
  other = batch.batch.micro;
  other.dropout.epoch = 1;
  CHECK(loss(config, other) != expected);
  const std::vector<std::int32_t> moved(60, 3);
  other = batch.batch.micro;
  other.dropout.samples = moved;
  CHECK(loss(config, other) != expected);
  const double none = loss(gpt2_with(0, 0, 0), batch.batch.micro);
  CHECK(loss(gpt2_with(0.1, 0, 0), batch.batch.micro) != none);
  CHECK(loss(gpt2_with(0, 0.1, 0), batch.batch.micro) != none);
  CHECK(loss(gpt2_with(0, 0, 0.1), batch.batch.micro) != none);
  // Without dropout the names of samples are nothing.
  CHECK(loss(gpt2_with(0, 0, 0), other) == none);
}

TEST_CASE("dropout: gradients are slopes of the loss under its mask") {
  for (const ModelConfig& config : {gpt2_with(0.2, 0.2, 0.2), qwen_with(0.4)}) {
    const DroppedBatch batch(true);
    ModelFixture f(config);
    f.initialize(3);
    Activations activations(config, {3, 20, true, Recompute::kLayers}, *f.operators);
    const auto pass = [&] {
      std::fill(f.gradients.begin(), f.gradients.end(), 0.0f);
      return f.model
          ->forward_backward(batch.batch.micro, f.units, CrossEntropyLoss(), 1.0f, activations)
          .value()
          .loss_sum;
    };
    (void)pass();
    const std::vector<float> gradients = f.gradients;
    // Along the gradient the loss rises by its square.
    double square = 0;
    for (const float g : gradients) square += static_cast<double>(g) * g;
    const std::vector<float> start = f.parameters;
    const double step = 1e-3 / std::sqrt(square);
    double losses[2];
    for (const int side : {0, 1}) {
      for (std::size_t i = 0; i < start.size(); ++i)
        f.parameters[i] = start[i] + static_cast<float>((side ? step : -step) * gradients[i]);
      losses[side] = pass();
    }
    CHECK((losses[1] - losses[0]) / (2 * step) == doctest::Approx(square).epsilon(2e-3));
  }
}

TEST_CASE("dropout is of training alone, and wants to know whose tokens it has") {
  const DroppedBatch batch(false);
  const auto evaluated = [&](const ModelConfig& config) {
    ModelFixture f(config);
    f.initialize(3);
    Activations activations(config, {3, 20, true, Recompute::kLayers}, *f.operators);
    return f.model->forward(batch.batch.micro, f.units, CrossEntropyLoss(), activations)
        .value()
        .loss_sum;
  };
  CHECK(evaluated(gpt2_with(0.1, 0.2, 0.3)) == evaluated(gpt2_with(0, 0, 0)));
  CHECK(evaluated(qwen_with(0.3)) == evaluated(qwen_with(0)));

  ModelFixture f(qwen_with(0.3));
  f.initialize(3);
  Activations activations(f.model->config(), {3, 20, true, Recompute::kLayers}, *f.operators);
  MicroBatch nameless = batch.batch.micro;
  nameless.dropout.places = {};
  CHECK(f.model->forward_backward(nameless, f.units, CrossEntropyLoss(), 1.0f, activations)
            .status()
            .to_string() ==
        "the model has dropout, and the micro-batch names 0 places for the masks of 60 tokens");
  // A model without dropout keeps no tables for it.
  const ActivationOptions options{3, 20, true, Recompute::kLayers};
  CHECK(Activations::bytes_needed(qwen_with(0), options) <
        Activations::bytes_needed(qwen_with(0.3), options));
  const ActivationOptions forward_only{3, 20, false, Recompute::kLayers};
  CHECK(Activations::bytes_needed(qwen_with(0), forward_only) ==
        Activations::bytes_needed(qwen_with(0.3), forward_only));
}

}  // namespace
}  // namespace troupe::train::tests

// Two passes around a function of log-probabilities: values, gradients by finite differences.

#include "train/objectives/objectives.h"

#include <cmath>

#include "tests/train/model/model_fixture.h"

namespace troupe::train::tests {
namespace {

ModelConfig objective_config(const std::string& more = "") {
  return ModelConfig::parse(R"({"model_type": "llama", "vocab_size": 60, "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "initializer_range": 0.2, "tie_word_embeddings": true)" +
                                more + "}",
                            "config.json")
      .value();
}

// Some function of each log-probability, with its derivative.
class Function final : public Objective {
 public:
  using Of = std::function<std::pair<double, double>(double)>;
  explicit Function(Of of) : of_(std::move(of)) {}
  std::string_view name() const override { return "a function"; }
  Result<TargetLosses> losses_of(const TargetTokens& targets) const override {
    TargetLosses result;
    for (std::size_t i = 0; i < targets.tokens.size(); ++i) {
      const auto [loss, derivative] = of_(targets.log_probabilities[i]);
      result.losses.push_back(static_cast<float>(loss));
      result.derivatives.push_back(static_cast<float>(derivative));
      // The target is the token behind.
      const auto next = static_cast<std::size_t>(targets.tokens[i]) + 1;
      CHECK(next % static_cast<std::size_t>(targets.batch.length) != 0);
      CHECK(targets.batch.labels[next] != kIgnoreLabel);
    }
    return result;
  }

 private:
  Of of_;
};

struct ObjectiveFixture : ModelFixture {
  explicit ObjectiveFixture(int threads = 1)
      : ModelFixture(objective_config(), threads),
        batch(3, 20, 60),
        activations(model->config(), {3, 20, true, Recompute::kNothing}, *operators) {
    initialize(3);
  }
  LossSum passes(const Objective& objective, float scale) {
    std::fill(gradients.begin(), gradients.end(), 0.0f);
    return objective.forward_backward(*model, batch.micro, units, scale, activations).value();
  }
  Batch batch;
  Activations activations;
};

TEST_CASE("a function of the log-probabilities has the gradient that finite differences have") {
  // A focal loss: −(1 − p)²·ln p. Its weights are of either sign where the factor 3 is taken off.
  const Function focal([](double l) {
    const double p = std::exp(l), rest = 1 - p;
    return std::pair(-rest * rest * l + 0.3 * l, 2 * rest * p * l - rest * rest + 0.3);
  });
  for (const int threads : {1, 2}) {
    ObjectiveFixture f(threads);
    const LossSum sum = f.passes(focal, 0.5f);
    CHECK(sum.target_count > 20);
    const std::vector<float> gradients = f.gradients;
    std::size_t checked = 0;
    for (std::size_t i = 0; i < gradients.size(); i += gradients.size() / 25 + 1) {
      const float old = f.parameters[i], h = 2e-3f;
      f.parameters[i] = old + h;
      const double above = focal.forward(*f.model, f.batch.micro, f.units, f.activations)->loss_sum;
      f.parameters[i] = old - h;
      const double below = focal.forward(*f.model, f.batch.micro, f.units, f.activations)->loss_sum;
      f.parameters[i] = old;
      CAPTURE(i);
      CHECK(0.5 * (above - below) / (2 * h) ==
            doctest::Approx(gradients[i]).epsilon(0.02).scale(1));
      checked += std::abs(gradients[i]) > 0.05;
    }
    CHECK(checked > 5);
  }
}

TEST_CASE("with weights of 1 two passes are SFT's one, bit by bit") {
  ObjectiveFixture one, two;
  const auto sft = make_objective();
  const Function same([](double l) { return std::pair(-l, -1.0); });
  const LossSum expected = one.passes(*sft, 1.0f), found = two.passes(same, 1.0f);
  CHECK(found.target_count == expected.target_count);
  CHECK(found.loss_sum == doctest::Approx(expected.loss_sum).epsilon(1e-6));
  CHECK(one.gradients == two.gradients);
  // SFT is the model's own pass with its own loss.
  ObjectiveFixture plain;
  const LossSum model = plain.model
                            ->forward_backward(plain.batch.micro, plain.units, CrossEntropyLoss(),
                                               1.0f, plain.activations)
                            .value();
  CHECK(model.loss_sum == expected.loss_sum);
  CHECK(plain.gradients == one.gradients);
}

TEST_CASE("DFT: each loss and its gradient times the probability, which is a constant") {
  ObjectiveFixture f;
  const auto dft = make_objective({.dft = true});
  std::vector<double> losses;
  const Function noted([&](double l) {
    losses.push_back(-l);
    return std::pair(-l, -std::exp(l));
  });
  f.passes(noted, 0.1f);
  const std::vector<float> expected = f.gradients;
  double sum = 0;
  for (const double loss : losses) sum += loss * std::exp(-loss);
  const LossSum found = f.passes(*dft, 0.1f);
  CHECK(found.loss_sum == doctest::Approx(sum).epsilon(1e-6));
  CHECK(relative_error(f.gradients, expected) < 1e-6);
}

TEST_CASE("an evaluation by any objective tells which targets were the most probable tokens") {
  ObjectiveFixture f;
  std::vector<bool> of_sft, of_dft;
  for (auto& [options, hits] : {std::pair(ObjectiveOptions{}, &of_sft),
                                std::pair(ObjectiveOptions{.dft = true}, &of_dft)}) {
    REQUIRE(make_objective(options)
                ->forward(*f.model, f.batch.micro, f.units, f.activations, {}, hits)
                .ok());
  }
  CHECK(std::ssize(of_dft) == count_targets(f.batch.micro));
  CHECK(of_dft == of_sft);
}

// Another objective, which says of it what belongs together, and how often it is asked.
class Told final : public Objective {
 public:
  Told(const Objective& of, Together together) : of_(of), together_(together) {}
  std::string_view name() const override { return of_.name(); }
  Together together() const override { return together_; }
  Result<TargetLosses> losses_of(const TargetTokens& targets) const override {
    ++asked;
    return of_.losses_of(targets);
  }
  mutable int asked = 0;

 private:
  const Objective& of_;
  const Together together_;
};

TEST_CASE("logits are computed once where the targets of a group fit, with the same gradients") {
  const auto dft = make_objective({.dft = true});
  const auto orpo = make_pair_objective({.loss = PairLoss::kOrpo, .beta = 0.5});
  ModelFixture f(objective_config());
  f.initialize(3);
  // More targets than a chunk has, in four sequences.
  Batch batch(4, 400, 60);
  Activations activations(f.model->config(), {4, 400, true, Recompute::kNothing}, *f.operators);
  const auto pass = [&](const Objective& objective) {
    std::fill(f.gradients.begin(), f.gradients.end(), 0.0f);
    const auto sum =
        objective.forward_backward(*f.model, batch.micro, f.units, 0.5f, activations).value();
    CHECK(sum.target_count > activations.head_rows);
    return sum.loss_sum;
  };
  using Together = Objective::Together;
  for (const auto& [objective, together] :
       {std::pair(dft.get(), Together::kNone), std::pair(orpo.get(), Together::kPairs)}) {
    // All together do not fit.
    const Told at_once(*objective, Together::kAll), by_chunk(*objective, together);
    const double expected = pass(at_once);
    const std::vector<float> gradients = f.gradients;
    CHECK(pass(by_chunk) == expected);
    CHECK(relative_error(f.gradients, gradients) < 1e-5);
    CHECK(at_once.asked == 1);
    CHECK(by_chunk.asked == 2);
  }
}

TEST_CASE("a batch without targets has no loss and no gradient") {
  ObjectiveFixture f;
  std::fill(f.batch.labels.begin(), f.batch.labels.end(), kIgnoreLabel);
  const LossSum sum = f.passes(*make_objective({.dft = true}), 1.0f);
  CHECK(sum.target_count == 0);
  CHECK(sum.loss_sum == 0);
  CHECK(std::all_of(f.gradients.begin(), f.gradients.end(), [](float x) { return x == 0; }));
}

TEST_CASE("dropout: log-probabilities are those of the very pass that is differentiated") {
  const ModelConfig config = objective_config(R"(, "attention_dropout": 0.4)");
  ModelFixture f(config);
  f.initialize(3);
  Batch batch(3, 20, 60);
  std::vector<std::int32_t> samples, places;
  for (std::int32_t i = 0; i < 60; ++i) samples.push_back(i / 20), places.push_back(i % 20);
  batch.micro.dropout = {.seed = 1, .epoch = 0, .samples = samples, .places = places};
  Activations activations(config, {3, 20, true, Recompute::kNothing}, *f.operators);
  const auto pass = [&](const Objective& objective) {
    std::fill(f.gradients.begin(), f.gradients.end(), 0.0f);
    return objective.forward_backward(*f.model, batch.micro, f.units, 1.0f, activations).value();
  };
  const Function same([](double l) { return std::pair(-l, -1.0); });
  CHECK(same.check(*f.operators, config).ok());
  const LossSum expected = pass(*make_objective());
  const std::vector<float> gradients = f.gradients;
  CHECK(pass(same).loss_sum == doctest::Approx(expected.loss_sum).epsilon(1e-6));
  CHECK(f.gradients == gradients);
}

}  // namespace
}  // namespace troupe::train::tests

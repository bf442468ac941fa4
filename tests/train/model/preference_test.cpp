// Losses of preference stages: values, derivatives by finite differences, and what they make of a
// model's gradients.

#include "train/objectives/preference.h"

#include <cmath>

#include "runtime/base/file_system.h"
#include "tests/support/test_data.h"
#include "tests/train/model/model_fixture.h"
#include "train/objectives/objectives.h"

namespace troupe::train::tests {
namespace {

constexpr PairLoss kPairLosses[] = {PairLoss::kSigmoid, PairLoss::kHinge, PairLoss::kIpo,
                                    PairLoss::kOrpo, PairLoss::kSimpo};

TEST_CASE("the derivative of every loss is that of finite differences") {
  SeededRandom random(11);
  const auto number = [&](double least, double most) {
    return least + (most - least) * static_cast<double>(random.below(1 << 20)) / (1 << 20);
  };
  const double h = 1e-5;
  for (const PairLoss loss : kPairLosses) {
    for (int round = 0; round < 200; ++round) {
      const PairOptions options{.loss = loss,
                                .beta = number(0.05, 2.5),
                                .label_smoothing = loss == PairLoss::kSigmoid ? number(0, 0.4) : 0,
                                .simpo_gamma = number(0, 1)};
      const AnswerLogProbability c{number(-6, -0.1), number(-6, -0.1)},
          r{number(-6, -0.1), number(-6, -0.1)};
      const PairResult at = pair_loss(options, c, r);
      const auto of = [&](double by_c, double by_r) {
        return pair_loss(options, {c.policy + by_c, c.reference}, {r.policy + by_r, r.reference})
            .loss;
      };
      // The hinge has no derivative where it ends.
      if (loss == PairLoss::kHinge && std::abs(at.loss) < 1e-3) continue;
      CHECK((of(h, 0) - of(-h, 0)) / (2 * h) == doctest::Approx(at.by_chosen).epsilon(1e-6));
      CHECK((of(0, h) - of(0, -h)) / (2 * h) == doctest::Approx(at.by_rejected).epsilon(1e-6));
    }
  }
  for (int round = 0; round < 200; ++round) {
    const KtoOptions options{.beta = number(0.05, 2),
                             .chosen_weight = number(0.5, 2),
                             .rejected_weight = number(0.5, 2)};
    const AnswerLogProbability answer{number(-6, 0), number(-6, 0)};
    const double drift = number(0, 2);
    const bool good = round % 2 == 0;
    const auto of = [&](double by) {
      return kto_loss(options, {answer.policy + by, answer.reference}, good, drift).loss;
    };
    CHECK((of(h) - of(-h)) / (2 * h) ==
          doctest::Approx(kto_loss(options, answer, good, drift).by_policy).epsilon(1e-6));
  }
}

// Made by tools/golden/make_preference_goldens.py.
TEST_CASE("losses and derivatives are TRL's") {
  const std::string path = troupe::tests::source_dir() + "/tests/golden/preference/golden.json";
  const json::Value golden =
      json::parse(PosixFileSystem().read(path, 1 << 20).value(), path).value();
  const auto numbers = [](const json::Value& in, std::string_view key) {
    std::vector<double> out;
    for (const json::Value& x : json::find(in, key)->as_array())
      out.push_back(x.to_number<double>());
    return out;
  };
  const auto number = [](const json::Value& in, std::string_view key) {
    return json::find_number(in, key).value();
  };
  const auto chosen = numbers(golden, "chosen"), rejected = numbers(golden, "rejected");
  const auto chosen_reference = numbers(golden, "chosen_reference");
  const auto rejected_reference = numbers(golden, "rejected_reference");
  const auto equal = [](double a, double b) { return std::abs(a - b) < 1e-9; };
  int compared = 0;
  for (const json::Value& entry : json::find(golden, "pairs")->as_array()) {
    const std::string name = json::find_string(entry, "loss").value();
    CAPTURE(name);
    const PairOptions options{.loss = *pair_loss_from_name(name),
                              .beta = number(entry, "beta"),
                              .label_smoothing = number(entry, "label_smoothing"),
                              .simpo_gamma = 0.5};
    const auto losses = numbers(entry, "losses"), by_chosen = numbers(entry, "by_chosen");
    const auto by_rejected = numbers(entry, "by_rejected");
    for (std::size_t i = 0; i < chosen.size(); ++i, ++compared) {
      const PairResult got = pair_loss(options, {chosen[i], chosen_reference[i]},
                                       {rejected[i], rejected_reference[i]});
      CHECK(equal(got.loss, losses[i]));
      CHECK(equal(got.by_chosen, by_chosen[i]));
      CHECK(equal(got.by_rejected, by_rejected[i]));
    }
  }
  for (const json::Value& entry : json::find(golden, "kto")->as_array()) {
    const KtoOptions options{.beta = number(entry, "beta"),
                             .chosen_weight = number(entry, "chosen_weight"),
                             .rejected_weight = number(entry, "rejected_weight")};
    const auto losses = numbers(entry, "losses"), by_chosen = numbers(entry, "by_chosen");
    const auto by_rejected = numbers(entry, "by_rejected");
    // The chosen answers first.
    for (std::size_t i = 0; i < 2 * chosen.size(); ++i, ++compared) {
      const bool good = i < chosen.size();
      const std::size_t at = i % chosen.size();
      const KtoResult got = kto_loss(
          options,
          {(good ? chosen : rejected)[at], (good ? chosen_reference : rejected_reference)[at]},
          good, number(entry, "drift"));
      CHECK(equal(got.loss, losses[i]));
      CHECK(equal(got.by_policy, (good ? by_chosen : by_rejected)[at]));
    }
  }
  CHECK(compared == 12 * 24 + 2 * 48);
}

TEST_CASE("losses as their formulas have them, far out too") {
  // h = 2, β = 0.5.
  const AnswerLogProbability c{-3, -4}, r{-5, -4};
  const auto loss = [&](PairLoss kind, double smoothing = 0) {
    return pair_loss({.loss = kind, .beta = 0.5, .label_smoothing = smoothing}, c, r).loss;
  };
  CHECK(loss(PairLoss::kSigmoid) == doctest::Approx(std::log1p(std::exp(-1.0))));
  CHECK(loss(PairLoss::kSigmoid, 0.25) ==
        doctest::Approx(0.75 * std::log1p(std::exp(-1.0)) + 0.25 * std::log1p(std::exp(1.0))));
  CHECK(loss(PairLoss::kHinge) == 0);
  CHECK(loss(PairLoss::kIpo) == doctest::Approx(1));
  CHECK(loss(PairLoss::kSimpo) == doctest::Approx(std::log1p(std::exp(-0.5))));
  const double odds = 2 - (std::log1p(-std::exp(-3.0)) - std::log1p(-std::exp(-5.0)));
  CHECK(loss(PairLoss::kOrpo) == doctest::Approx(3 + 0.5 * std::log1p(std::exp(-odds))));
  const PairResult rewards = pair_loss({.beta = 0.5}, c, r);
  CHECK(rewards.chosen_reward == 0.5);
  CHECK(rewards.rejected_reward == -0.5);
  // Nothing overflows, and what is sure has no loss.
  for (const double x : {-1e4, 1e4}) {
    const PairResult far = pair_loss({}, {x, 0}, {0, 0});
    CHECK(std::isfinite(far.loss));
    CHECK(far.loss == doctest::Approx(x < 0 ? 1e3 : 0));
  }
  CHECK(std::isfinite(pair_loss({.loss = PairLoss::kOrpo}, {0, 0}, {-40, 0}).loss));
  CHECK_FALSE(pair_loss_from_name("kto_pair"));
}

// Sequences of these lengths as segments of one row.
struct Sequences {
  explicit Sequences(const std::vector<std::int64_t>& lengths, std::vector<std::uint8_t> good = {})
      : desirable(std::move(good)) {
    SeededRandom random(9);
    for (const std::int64_t length : lengths) {
      ++segment;
      for (std::int64_t i = 0; i < length; ++i) {
        ids.push_back(static_cast<std::int32_t>(random.below(60)));
        labels.push_back(i < 2 ? kIgnoreLabel : ids.back());
        positions.push_back(static_cast<std::int32_t>(i));
        segments.push_back(segment);
      }
    }
    micro = {.rows = 1,
             .length = std::ssize(ids),
             .ids = ids,
             .labels = labels,
             .position_ids = positions,
             .segment_ids = segments,
             .desirable = desirable};
  }
  std::int32_t segment = 0;
  std::vector<std::int32_t> ids, labels, positions, segments;
  std::vector<std::uint8_t> desirable;
  MicroBatch micro;
};

ModelConfig small_config() {
  return ModelConfig::parse(R"({"model_type": "llama", "vocab_size": 60, "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "initializer_range": 0.2, "tie_word_embeddings": true})",
                            "config.json")
      .value();
}

// A model, all of which is trained, with what the stage adds to it.
struct StageFixture {
  explicit StageFixture(const Trainables& trainables)
      : operators(make_cpu_operators(arena)),
        model(make_model(small_config(), *operators, trainables)),
        trained(values_of(model->model_layout().trained(), 3)),
        frozen(values_of(model->model_layout().frozen(), 4)),
        gradients(trained.size()),
        units(model->model_layout(), ResidentSpace(model->model_layout().trained(), trained),
              ResidentSpace(model->model_layout().frozen(), frozen), gradients),
        activations(small_config(), {4, 20, true, Recompute::kLayers}, *operators) {
    if (trainables.reference != Reference::kNone)
      reference = make_reference(small_config(), *operators, trainables);
  }
  static std::vector<float> values_of(const ParameterLayout& layout, std::uint64_t seed) {
    std::vector<float> values(static_cast<std::size_t>(layout.total_elements()));
    for (std::size_t i = 0; i < layout.units().size(); ++i) {
      const UnitInfo& unit = layout.units()[i];
      initialize_unit(layout, static_cast<int>(i), 0.2, seed,
                      std::span(values).subspan(static_cast<std::size_t>(unit.flat_offset),
                                                static_cast<std::size_t>(unit.elements)));
    }
    return values;
  }
  Asked ask(const Objective& objective, const Sequences& own, const Sequences& others) {
    return objective
        .ask({.model = *model,
              .reference = reference.get(),
              .units = units,
              .activations = activations},
             own.micro, others.micro)
        .value();
  }

  Arena arena{1};
  std::unique_ptr<Operators> operators;
  std::unique_ptr<Model> model, reference;
  std::vector<float> trained, frozen, gradients;
  ResidentUnits units;
  Activations activations;
};

// Finite differences of the whole pass, whatever is asked before it staying as it is.
void check_gradients(StageFixture& f, const Objective& objective, const Sequences& batch,
                     const Asked& asked) {
  std::fill(f.gradients.begin(), f.gradients.end(), 0.0f);
  REQUIRE(
      objective.forward_backward(*f.model, batch.micro, f.units, 0.5f, f.activations, asked).ok());
  const auto loss = [&] {
    return objective.forward(*f.model, batch.micro, f.units, f.activations, asked)->loss_sum;
  };
  int checked = 0;
  for (std::size_t i = 5; i < f.trained.size(); i += f.trained.size() / 60) {
    if (std::abs(f.gradients[i]) < 0.01) continue;
    const float old = f.trained[i], h = 2e-3f;
    f.trained[i] = old + h;
    const double above = loss();
    f.trained[i] = old - h;
    const double below = loss();
    f.trained[i] = old;
    CAPTURE(i);
    CHECK(0.5 * (above - below) / (2 * h) ==
          doctest::Approx(f.gradients[i]).epsilon(0.03).scale(0.1));
    ++checked;
  }
  CHECK(checked > 3);
}

TEST_CASE("pairs: a model's gradients, with and without a reference") {
  const Sequences batch({9, 7, 6, 11});
  for (const PairLoss loss : kPairLosses) {
    CAPTURE(static_cast<int>(loss));
    const auto objective =
        make_pair_objective({.loss = loss, .beta = 0.5, .sft_weight = 0.3, .ld_alpha = 0.5});
    StageFixture f({.reference = has_reference(loss) ? Reference::kBase : Reference::kNone});
    CHECK(f.model->model_layout().has_frozen() == has_reference(loss));
    const Asked asked = f.ask(*objective, batch, batch);
    CHECK(asked.reference.empty() != has_reference(loss));
    check_gradients(f, *objective, batch, asked);
    const ObjectiveSum sum =
        objective->forward(*f.model, batch.micro, f.units, f.activations, asked).value();
    const auto values = metric_values(objective->metrics(), sum.metrics);
    CHECK(values.contains("odds_ratio_loss") == (loss == PairLoss::kOrpo));
    CHECK(json::find_number(values, "rewards/margins").value() ==
          doctest::Approx(json::find_number(values, "rewards/chosen").value() -
                          json::find_number(values, "rewards/rejected").value()));
  }
}

TEST_CASE("a reference shares what is frozen, and has of the rest its own") {
  Trainables part{.everything = false,
                  .tensors = {"model.layers.1.mlp.down_proj.weight"},
                  .lora = {},
                  .reference = Reference::kBase};
  const ModelLayout layout(small_config(), part);
  CHECK(layout.find("reference.model.layers.1.mlp.down_proj.weight"));
  CHECK_FALSE(layout.find("reference.model.layers.0.mlp.down_proj.weight"));
  CHECK(layout.reference_elements() == 32 * 48);
  CHECK(layout.parameter_elements() == ModelLayout(small_config()).parameter_elements());
  const ModelLayout seen = layout.of_reference();
  CHECK(seen.ref("model.layers.1.mlp.down_proj.weight").frozen);
  CHECK(seen.ref("model.layers.1.mlp.down_proj.weight").offset ==
        layout.frozen().find("reference.model.layers.1.mlp.down_proj.weight")->offset_elements);
  CHECK(seen.ref("model.norm.weight").offset == layout.ref("model.norm.weight").offset);
  // Adapters are nothing of the reference's, and cost no copy.
  const Trainables adapters{.everything = false,
                            .lora = {{.module = "model.layers.0.mlp.up_proj"}},
                            .reference = Reference::kBase};
  const ModelLayout adapted(small_config(), adapters);
  CHECK(adapted.reference_elements() == 0);
  CHECK(adapted.of_reference().adapter("model.layers.0.mlp.up_proj") == nullptr);
  // A reference that is another model is copied whole.
  const ModelLayout other(small_config(), {.everything = false,
                                           .lora = {{.module = "model.layers.0.mlp.up_proj"}},
                                           .reference = Reference::kOther});
  CHECK(other.reference_elements() == ModelLayout(small_config()).parameter_elements());
}

TEST_CASE("kto: gradients, and the drift of answers to other questions") {
  const Sequences batch({9, 7, 12}, {1, 0, 1}), others({8, 8, 9}, {1, 0, 1});
  const auto objective = make_kto_objective({.beta = 0.3, .chosen_weight = 1.5, .sft_weight = 0.2});
  StageFixture f({.reference = Reference::kBase});
  const Asked asked = f.ask(*objective, batch, others);
  REQUIRE(asked.own_drift.has_value());
  CHECK(asked.drift == std::max(0.0, *asked.own_drift));
  Asked drifted = asked;
  drifted.drift = 0.7;
  check_gradients(f, *objective, batch, drifted);
}

TEST_CASE("a reward model: values of the last tokens, and their gradients") {
  const Sequences batch({9, 7, 6, 11});
  const auto objective = make_reward_objective();
  StageFixture f({.value_head = true});
  CHECK_FALSE(f.model->model_layout().has_frozen());
  check_gradients(f, *objective, batch, {});
  const auto& layout = f.model->model_layout();
  const auto slice = [&](const char* name) {
    const ParameterInfo* info = layout.find(name);
    REQUIRE(info);
    return std::span(f.gradients)
        .subspan(static_cast<std::size_t>(layout.trained().flat_offset(*info)),
                 static_cast<std::size_t>(info->elements));
  };
  // Both answers' values have the bias.
  CHECK(std::abs(slice("v_head.summary.bias")[0]) < 1e-6);
  CHECK(std::ranges::any_of(slice("v_head.summary.weight"),
                            [](float g) { return std::abs(g) > 1e-3; }));
  const ObjectiveSum sum =
      objective->forward(*f.model, batch.micro, f.units, f.activations).value();
  CHECK(sum.target_count == 4);
  CHECK(sum.metrics.counts[0] == 2);
}

}  // namespace
}  // namespace troupe::train::tests

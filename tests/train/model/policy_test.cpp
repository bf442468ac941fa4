// Losses of policy gradients against verl's own (tools/golden/make_policy_goldens.py), and their
// derivatives by finite differences.

#include "train/objectives/policy.h"

#include <cmath>

#include <doctest/doctest.h>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "tests/support/test_data.h"

namespace troupe::train::tests {
namespace {

using Numbers = std::vector<double>;

struct PolicyGolden {
  PolicyGolden() {
    const std::string path = troupe::tests::source_dir() + "/tests/golden/policy/golden.json";
    root = json::parse(PosixFileSystem().read(path, 1 << 20).value(), path).value();
    for (const double x : numbers(root, "mask")) mask.push_back(x != 0 ? 1 : 0);
    tokens = {mask, json::find_integer(root, "length").value()};
    step_weights = aggregation_weights(LossAggregation::kTokenMean, tokens);
  }
  static Numbers numbers(const json::Value& in, std::string_view key) {
    Numbers out;
    for (const json::Value& x : json::find(in, key)->as_array())
      out.push_back(x.to_number<double>());
    return out;
  }
  Numbers numbers(std::string_view key) const { return numbers(root, key); }
  const json::Array& list(std::string_view key) const { return json::find(root, key)->as_array(); }

  json::Value root;
  std::vector<std::uint8_t> mask;
  AnswerTokens tokens;
  Numbers step_weights;
};

double number(const json::Value& in, std::string_view key) {
  return json::find_number(in, key).value();
}

double farthest(const Numbers& a, const Numbers& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

constexpr double kEqual = 1e-12;

void check_loss(const TokenLoss& got, const json::Value& expected) {
  CHECK(std::abs(got.loss - number(expected, "loss")) < kEqual);
  CHECK(farthest(got.derivatives, PolicyGolden::numbers(expected, "derivatives")) < kEqual);
}

TEST_CASE("losses, derivatives and advantages are verl's") {
  const PolicyGolden golden;
  const Numbers now = golden.numbers("new"), old = golden.numbers("old");
  int clipped = 0, dual_clipped = 0;
  for (const json::Value& entry : golden.list("policy")) {
    const auto mode = loss_aggregation_from_name(json::find_string(entry, "mode").value());
    REQUIRE(mode);
    const TokenLoss got = policy_loss({.clip_low = number(entry, "low"),
                                       .clip_high = number(entry, "high"),
                                       .dual_clip = number(entry, "dual")},
                                      now, old, golden.numbers("advantages"),
                                      aggregation_weights(*mode, golden.tokens));
    check_loss(got, entry);
    CHECK(got.clipped == doctest::Approx(number(entry, "clipped")).epsilon(1e-6));
    CHECK(got.dual_clipped == doctest::Approx(number(entry, "dual_clipped")).epsilon(1e-6));
    clipped += got.clipped > 0;
    dual_clipped += got.dual_clipped > 0;
  }
  CHECK(clipped == 9);
  CHECK(dual_clipped >= 3);
  for (const json::Value& entry : golden.list("kl")) {
    const std::string name = json::find_string(entry, "name").value();
    CAPTURE(name);
    check_loss(
        kl_loss(*kl_options_from_name(name), now, golden.numbers("reference"), golden.step_weights),
        entry);
  }
  for (const json::Value& entry : golden.list("value"))
    check_loss(value_loss(number(entry, "clip"), golden.numbers("predicted"),
                          golden.numbers("values"), golden.numbers("returns"), golden.step_weights),
               entry);
  for (const json::Value& entry : golden.list("gae")) {
    Advantages got =
        generalized_advantages(number(entry, "gamma"), number(entry, "lambda"),
                               golden.numbers("rewards"), golden.numbers("values"), golden.tokens);
    CHECK(farthest(got.returns, PolicyGolden::numbers(entry, "returns")) < kEqual);
    whiten(got.advantages, golden.tokens);
    CHECK(farthest(got.advantages, PolicyGolden::numbers(entry, "whitened")) < kEqual);
  }
  std::vector<std::int64_t> groups;
  for (const double group : golden.numbers("groups"))
    groups.push_back(static_cast<std::int64_t>(group));
  for (const json::Value& entry : golden.list("grpo"))
    CHECK(farthest(group_advantages({.divides = json::find(entry, "divides")->as_bool()},
                                    golden.numbers("scores"), groups),
                   PolicyGolden::numbers(entry, "advantages")) < kEqual);
}

TEST_CASE("derivatives are those of finite differences, far out too") {
  SeededRandom random(3);
  const auto draw = [&](double least, double most) {
    return least + (most - least) * static_cast<double>(random.below(1 << 20)) / (1 << 20);
  };
  const Numbers one{1};
  const double h = 1e-6;
  for (int round = 0; round < 400; ++round) {
    const Numbers at{draw(-8, 0)}, other{draw(-8, 0)}, advantage{draw(-2, 2)};
    const PolicyOptions policy{.clip_low = 0.2,
                               .clip_high = 0.4,
                               .dual_clip = round % 2 == 0 ? std::optional(3.0) : std::nullopt};
    KlOptions kl{.estimator = static_cast<KlEstimator>(round % 4)};
    const auto check = [&](auto loss) {
      const TokenLoss here = loss(at);
      const double below = loss({at[0] - h}).loss, above = loss({at[0] + h}).loss;
      // A limit has no derivative.
      if (std::abs((above - here.loss) - (here.loss - below)) > 1e-8 * (1 + std::abs(here.loss)))
        return;
      CHECK((above - below) / (2 * h) ==
            doctest::Approx(here.derivatives[0]).epsilon(1e-5).scale(1 + std::abs(here.loss)));
    };
    check([&](const Numbers& x) { return policy_loss(policy, x, other, advantage, one); });
    check([&](const Numbers& x) { return kl_loss(kl, x, other, one); });
    check([&](const Numbers& x) { return value_loss(0.5, x, other, advantage, one); });
    kl.derivative_of_k2 = true;
    CHECK(kl_loss(kl, at, other, one).derivatives[0] == at[0] - other[0]);
  }
  for (const double far : {-1e4, 1e4}) {
    CHECK(std::isfinite(policy_loss({}, Numbers{far}, Numbers{0}, Numbers{1}, one).loss));
    const TokenLoss kl = kl_loss({}, Numbers{far}, Numbers{0}, one);
    CHECK(kl.loss == 10);
    CHECK(kl.derivatives[0] == 0);
  }
}

TEST_CASE("means are over the step, whatever the batches of it are") {
  const std::vector<std::uint8_t> mask{1, 1, 0, 0, 0, 0, 1, 0, 1};
  const AnswerTokens all{mask, 3};
  for (const char* name : {"token-mean", "token-sum", "seq-mean-token-sum",
                           "seq-mean-token-sum-norm", "seq-mean-token-mean"}) {
    CAPTURE(name);
    const LossAggregation mode = *loss_aggregation_from_name(name);
    const Numbers whole = aggregation_weights(mode, all);
    Numbers parts;
    for (std::size_t row = 0; row < 3; ++row) {
      const AnswerTokens one{std::span(mask).subspan(3 * row, 3), 3};
      const Numbers some = aggregation_weights(mode, one, {.tokens = 4, .sequences = 2});
      parts.insert(parts.end(), some.begin(), some.end());
    }
    CHECK(parts == whole);
  }
  CHECK(aggregation_weights(LossAggregation::kTokenMean, all)[0] == 0.25);
  CHECK(aggregation_weights(LossAggregation::kSequenceMeanTokenSum, all)[8] == 0.5);
  CHECK(aggregation_weights(LossAggregation::kSequenceMeanTokenSumNorm, all)[8] ==
        doctest::Approx(1.0 / 6));
  CHECK(aggregation_weights(LossAggregation::kSequenceMeanTokenMean, all)[0] ==
        doctest::Approx(0.25));
  CHECK_FALSE(loss_aggregation_from_name("mean"));
  CHECK_FALSE(kl_options_from_name("k4"));
  CHECK(kl_options_from_name("low_var_kl+")->derivative_of_k2);
  // An answer alone, and scores that are equal.
  const std::vector<std::int64_t> groups{1, 2, 2};
  CHECK(group_advantages({}, Numbers{0.5, 3, 3}, groups) == Numbers{0.5 / (1 + 1e-6), 0, 0});
}

}  // namespace
}  // namespace troupe::train::tests

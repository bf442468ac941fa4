// Rates that follow evaluations, against torch's ReduceLROnPlateau as it stands there.
#include "train/optimizer/plateau.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "runtime/base/random.h"

namespace troupe::train {
namespace {

// torch's, in its variables.
struct ReduceLROnPlateau {
  bool max;
  double factor;
  std::int64_t patience;
  double threshold;
  bool rel;
  std::int64_t cooldown;
  double min_lr, eps, lr;
  double best =
      max ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  std::int64_t num_bad_epochs = 0, cooldown_counter = 0;

  bool is_better(double a) const {
    if (!max) return rel ? a < best * (1 - threshold) : a < best - threshold;
    return rel ? a > best * (1 + threshold) : a > best + threshold;
  }
  void step(double metric) {
    if (is_better(metric)) {
      best = metric;
      num_bad_epochs = 0;
    } else {
      num_bad_epochs += 1;
    }
    if (cooldown_counter > 0) {
      cooldown_counter -= 1;
      num_bad_epochs = 0;
    }
    if (num_bad_epochs > patience) {
      const double lower = std::max(lr * factor, min_lr);
      if (lr - lower > eps) lr = lower;
      cooldown_counter = cooldown;
      num_bad_epochs = 0;
    }
  }
};

TEST_CASE("the rate falls as torch's does") {
  SeededRandom random(5);
  for (int round = 0; round < 40; ++round) {
    const bool max = round % 2 == 1, rel = round % 3 != 0;
    const auto patience = static_cast<std::int64_t>(random.below(4));
    const auto cooldown = static_cast<std::int64_t>(random.below(3));
    const PlateauRule rule{.greater_is_better = max,
                           .factor = 0.5,
                           .patience = patience,
                           .threshold = 0.01,
                           .is_relative = rel,
                           .cooldown = cooldown,
                           .least = 1e-5,
                           .epsilon = 1e-7};
    ReduceLROnPlateau theirs{max, 0.5, patience, 0.01, rel, cooldown, 1e-5, 1e-7, 1e-3};
    PlateauState ours{.learning_rate = 1e-3};
    double level = 2;
    for (int evaluation = 0; evaluation < 60; ++evaluation) {
      level += 0.1 * (static_cast<double>(random.below(1000)) / 1000 - (max ? 0.4 : 0.6));
      const double metric =
          evaluation % 17 == 11 ? std::numeric_limits<double>::quiet_NaN() : level;
      theirs.step(metric);
      ours = plateau_after(rule, ours, metric);
      REQUIRE(ours.learning_rate == theirs.lr);
      REQUIRE(ours.misses == theirs.num_bad_epochs);
    }
  }
}

TEST_CASE("its settings are torch's") {
  const PlateauRule plain = PlateauRule::read({}).value();
  CHECK(plain.factor == 0.1);
  CHECK(plain.patience == 10);
  CHECK(plain.threshold == 1e-4);
  CHECK(plain.is_relative);
  CHECK_FALSE(plain.greater_is_better);
  const PlateauRule given = PlateauRule::read({{"mode", "max"},
                                               {"factor", 0.3},
                                               {"patience", 2},
                                               {"threshold", 0.1},
                                               {"threshold_mode", "abs"},
                                               {"cooldown", 4},
                                               {"min_lr", 1e-6},
                                               {"eps", 0}})
                                .value();
  CHECK(given.greater_is_better);
  CHECK(given.factor == 0.3);
  CHECK(given.patience == 2);
  CHECK_FALSE(given.is_relative);
  CHECK(given.cooldown == 4);
  CHECK(given.least == 1e-6);
  CHECK(given.epsilon == 0);
  for (const json::Object& bad : {json::Object{{"mode", "most"}}, json::Object{{"factor", 1.0}},
                                  json::Object{{"patience", 1.5}}, json::Object{{"min_lr", -1}},
                                  json::Object{{"steps", 3}}, json::Object{{"factor", "x"}}})
    CHECK(PlateauRule::read(bad).status().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace troupe::train

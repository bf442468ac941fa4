#include "train/optimizer/adamw.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "runtime/base/random.h"
#include "train/optimizer/gradient_norm.h"

namespace troupe::train {
namespace {

std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(random.unit() - 0.5);
  return out;
}

TEST_CASE("AdamW equals the formula in double") {
  std::vector<float> p = random_values(100, 1), m(100), v(100);
  std::vector<double> exact(p.begin(), p.end()), first(100), second(100);
  for (int step = 1; step <= 20; ++step) {
    const std::vector<float> g = random_values(100, 10 + static_cast<std::uint64_t>(step));
    adamw_update(AdamWFactors({.learning_rate = 1e-2,
                               .beta1 = 0.9,
                               .beta2 = 0.99,
                               .epsilon = 1e-8,
                               .weight_decay = 0.1,
                               .step = step,
                               .gradient_scale = 0.5f},
                              {.decays = true}),
                 0, p, g, m, v);
    for (std::size_t i = 0; i < 100; ++i) {
      const double gradient = 0.5 * g[i];
      first[i] = 0.9 * first[i] + 0.1 * gradient;
      second[i] = 0.99 * second[i] + 0.01 * gradient * gradient;
      exact[i] -= 1e-2 * 0.1 * exact[i];
      exact[i] -= 1e-2 * (first[i] / (1 - std::pow(0.9, step))) /
                  (std::sqrt(second[i] / (1 - std::pow(0.99, step))) + 1e-8);
    }
  }
  for (std::size_t i = 0; i < 100; ++i) CHECK(std::abs(p[i] - exact[i]) < 2e-6);
}

TEST_CASE("a shard's bits do not depend on where it begins") {
  const ParameterGroups groups = {{37, {.decays = true}}, {61, {}}, {200, {.decays = true}}};
  const AdamWStep step{.learning_rate = 1e-2, .weight_decay = 0.1, .step = 3};
  const std::vector<float> g = random_values(200, 5);
  std::vector<float> p = random_values(200, 1), m = random_values(200, 2), v(200, 0.5f);
  std::vector<float> p2 = p, m2 = m, v2 = v;
  adamw_update(step, groups, 0, p, g, m, v);
  for (const auto& [begin, end] : {std::pair{0u, 50u}, {50u, 51u}, {51u, 200u}})
    adamw_update(step, groups, begin, std::span(p2).subspan(begin, end - begin),
                 std::span(g).subspan(begin, end - begin),
                 std::span(m2).subspan(begin, end - begin),
                 std::span(v2).subspan(begin, end - begin));
  CHECK(p == p2);
  CHECK(m == m2);
  CHECK(v == v2);
}

TEST_CASE("the norm, its clip coefficient, and what is not finite") {
  std::vector<float> tile(1000, 1e30f);
  CHECK(std::isfinite(tile_sum_of_squares(tile)));
  const std::vector<double> sums = {9.0, 16.0};
  CHECK(combine_tile_sums(sums).norm == 5.0);
  CHECK(clip_coefficient(5.0, 1.0) == doctest::Approx(0.2));
  CHECK(clip_coefficient(0.5, 1.0) == 1.0f);
  CHECK(clip_coefficient(5.0, 0.0) == 1.0f);
  tile[777] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<double> bad = {1.0, tile_sum_of_squares(tile), INFINITY};
  CHECK(combine_tile_sums(bad).first_non_finite_tile == 1);
  CHECK(!std::isfinite(combine_tile_sums(bad).norm));
}

}  // namespace
}  // namespace troupe::train

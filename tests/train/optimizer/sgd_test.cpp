// SGD, as any optimizer is used: through the table, over chunks that groups cut.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "runtime/base/random.h"
#include "train/optimizer/optimizers.h"
#include "train/optimizer/random_rounding.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

const ParameterGroups kGroups = {
    {37, {.decays = true}}, {61, {}}, {200, {.learning_rate_factor = 4.0, .decays = true}}};

std::vector<float> sgd_values(std::size_t count, std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(random.unit() - 0.5);
  return out;
}

template <typename T>
void update(const OptimizerStep& step, std::size_t begin, std::span<T> parameters,
            std::span<const float> gradients) {
  const auto sgd = make_optimizer("sgd", {.weight_decay = 0.1});
  CHECK(sgd->name() == "SGD");
  CHECK(sgd->slots().empty());
  update_chunk(*sgd->prepare(step, kGroups.groups()), kGroups,
               {.begin = static_cast<std::int64_t>(begin),
                .state = sizeof(T) == sizeof(float) ? DType::kF32 : DType::kBF16,
                .parameters = std::as_writable_bytes(parameters),
                .gradients = gradients,
                .slots = {}});
}

// torch.optim.SGD(lr, weight_decay) after clipping: g ← c·g + wd·p, p ← p − lr·g.
double exact(double parameter, double gradient, std::size_t at) {
  const double decay = at < 37 || at >= 61 ? 0.1 : 0.0, rate = at >= 61 ? 4e-2 : 1e-2;
  return parameter - rate * (0.5 * gradient + decay * parameter);
}

TEST_CASE("SGD equals torch's formula, with the decay and the learning rate of each group") {
  const std::vector<float> g = sgd_values(200, 5), before = sgd_values(200, 1);
  std::vector<float> p = before;
  update<float>({.learning_rate = 1e-2, .gradient_scale = 0.5f}, 0, p, g);
  for (std::size_t i = 0; i < p.size(); ++i)
    CHECK(std::abs(p[i] - exact(before[i], g[i], i)) < 6e-8);
  // Of bf16 the one rounding is the difference.
  std::vector<std::uint16_t> half(200);
  bf16_from_float(before.data(), half.data(), 200);
  const std::vector<std::uint16_t> stored = half;
  update<std::uint16_t>({.learning_rate = 1e-2, .gradient_scale = 0.5f}, 0, half, g);
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double wanted = exact(bf16_to_float(stored[i]), g[i], i);
    CHECK(std::abs(bf16_to_float(half[i]) - wanted) <= std::abs(wanted) * 0x1.01p-8);
  }
}

TEST_CASE("SGD's bits do not depend on where a shard begins") {
  const std::vector<float> g = sgd_values(200, 5);
  const auto check = [&]<typename T>(const std::vector<T>& before, const OptimizerStep& step) {
    std::vector<T> whole = before, cut = before;
    update<T>(step, 0, whole, g);
    CHECK(whole != before);
    for (const auto& [begin, end] : {std::pair{0u, 51u}, {51u, 52u}, {52u, 200u}})
      update<T>(step, begin, std::span(cut).subspan(begin, end - begin),
                std::span(g).subspan(begin, end - begin));
    CHECK(whole == cut);
    return whole;
  };
  const std::vector<float> p = sgd_values(200, 1);
  std::vector<std::uint16_t> half(200);
  bf16_from_float(p.data(), half.data(), 200);
  check(p, {.learning_rate = 1e-2});
  const auto nearest = check(half, {.learning_rate = 1e-2});
  const auto randomly = check(half, {.learning_rate = 1e-2, .rounding_key = rounding_key(42, 3)});
  CHECK(nearest != randomly);
}

}  // namespace
}  // namespace troupe::train

// An optimizer that is written element by element, beside the same one written by hand.
#include <doctest/doctest.h>

#include <vector>

#include "runtime/base/random.h"
#include "train/optimizer/optimizers.h"
#include "train/optimizer/random_rounding.h"
#include "train/parts/own_optimizer.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

constexpr float kDecay = 0.1f;
constexpr std::size_t kCount = 700;
const ParameterGroups kGroups = {
    {37, {.decays = true}}, {361, {}}, {kCount, {.learning_rate_factor = 4.0, .decays = true}}};

class OwnSgd : public ElementwiseOptimizer {
 public:
  std::string_view name() const override { return "own SGD"; }
  void update_elements(const ElementwiseStep& step, std::span<float> p, std::span<const float> g,
                       std::span<const std::span<float>>) const override {
    const float decay = step.decays ? kDecay : 0.0f;
    for (std::size_t i = 0; i < p.size(); ++i) p[i] -= step.learning_rate * (g[i] + p[i] * decay);
  }
};

// Keeps sums of the gradients in three slots, each rounded as the state is.
class Sums : public ElementwiseOptimizer {
 public:
  std::string_view name() const override { return "sums"; }
  std::vector<std::string> slots() const override { return {"once", "twice", "updates"}; }
  void update_elements(const ElementwiseStep& step, std::span<float>, std::span<const float> g,
                       std::span<const std::span<float>> slots) const override {
    for (std::size_t i = 0; i < g.size(); ++i) {
      slots[0][i] += g[i];
      slots[1][i] += 2 * g[i];
      slots[2][i] = static_cast<float>(step.updates);
    }
  }
};

std::vector<float> values(std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> out(kCount);
  for (float& x : out) x = static_cast<float>(random.unit() - 0.5);
  return out;
}

template <typename T>
void update(const Optimizer& optimizer, const OptimizerStep& step, std::size_t begin,
            std::span<T> parameters, std::span<const float> gradients,
            std::vector<std::span<std::byte>> slots = {}) {
  update_chunk(*optimizer.prepare(step, kGroups.groups()), kGroups,
               {.begin = static_cast<std::int64_t>(begin),
                .state = sizeof(T) == sizeof(float) ? DType::kF32 : DType::kBF16,
                .parameters = std::as_writable_bytes(parameters),
                .gradients = gradients,
                .slots = slots});
}

TEST_CASE("an elementwise optimizer has the bits of one that is written for chunks") {
  const auto by_hand = make_optimizer("sgd", {.weight_decay = kDecay});
  const auto own_sgd = run_optimizer(std::make_shared<OwnSgd>());
  const Optimizer& own = *own_sgd;
  const std::vector<float> g = values(5), p = values(1);
  std::vector<std::uint16_t> half(kCount);
  bf16_from_float(p.data(), half.data(), kCount);
  const auto check = [&]<typename T>(const std::vector<T>& before, const OptimizerStep& step) {
    std::vector<T> wanted = before, got = before, cut = before;
    update<T>(*by_hand, step, 0, wanted, g);
    update<T>(own, step, 0, got, g);
    CHECK(wanted != before);
    CHECK(got == wanted);
    for (const auto& [begin, end] : {std::pair{0u, 51u}, {51u, 52u}, {52u, 700u}})
      update<T>(own, step, begin, std::span(cut).subspan(begin, end - begin),
                std::span(g).subspan(begin, end - begin));
    CHECK(cut == wanted);
  };
  check(p, {.learning_rate = 1e-2, .gradient_scale = 0.3f});
  check(half, {.learning_rate = 1e-2, .gradient_scale = 0.3f});
  check(half, {.learning_rate = 1e-2, .rounding_key = rounding_key(42, 3)});
}

TEST_CASE("its slots are kept in the state's type, each rounded with bits of its own") {
  const auto sums = run_optimizer(std::make_shared<Sums>());
  const Optimizer& own = *sums;
  const std::vector<float> g = values(5);
  std::vector<std::uint16_t> p(kCount), once(kCount), twice(kCount), updates(kCount);
  const auto step = [&](std::int64_t number, std::optional<std::uint64_t> key) {
    update<std::uint16_t>(
        own, {.updates = number, .rounding_key = key}, 0, p, g,
        {std::as_writable_bytes(std::span(once)), std::as_writable_bytes(std::span(twice)),
         std::as_writable_bytes(std::span(updates))});
  };
  step(1, std::nullopt);
  for (std::size_t i = 0; i < kCount; ++i) {
    CHECK(once[i] == float_to_bf16(g[i]));
    CHECK(twice[i] == float_to_bf16(2 * g[i]));
    CHECK(bf16_to_float(updates[i]) == 1.0f);
  }
  once.assign(kCount, 0), twice.assign(kCount, 0);
  step(2, rounding_key(42, 1));
  int apart = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    CHECK(bf16_to_float(updates[i]) == 2.0f);  // what bf16 holds stays
    apart += bf16_to_float(twice[i]) != 2 * bf16_to_float(once[i]) ? 1 : 0;
  }
  CHECK(apart > 100);
}

}  // namespace
}  // namespace troupe::train

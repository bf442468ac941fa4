// AdamW over a state that is kept in bf16.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "runtime/base/random.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/random_rounding.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

using Bits = std::vector<std::uint16_t>;

Bits random_bits(std::size_t count, std::uint64_t seed, double low, double high) {
  SeededRandom random(seed);
  Bits out(count);
  for (std::uint16_t& x : out)
    x = float_to_bf16(static_cast<float>(low + (high - low) * random.unit()));
  return out;
}

std::vector<float> random_gradients(std::size_t count, std::uint64_t seed) {
  SeededRandom random(seed);
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(random.unit() - 0.5);
  return out;
}

// Steps between two bf16 numbers of one sign.
int ulps(std::uint16_t a, std::uint16_t b) { return std::abs(static_cast<int>(a) - b); }

struct Count {
  int different = 0, worst = 0;
  void add(std::uint16_t a, std::uint16_t b) {
    different += a != b;
    worst = std::max(worst, ulps(a, b));
  }
};

// Made with PyTorch: torch.optim.AdamW([p], lr=0.02, betas=(0.9, 0.98), eps=1e-8,
// weight_decay=0.1, fused=True), p = ((i·37) mod 23 − 11) / 8 in bf16, six steps s with gradients
// ((i·53 + s·29) mod 31 − 15) / 64.
TEST_CASE("bf16 AdamW equals PyTorch's fused one over bf16 parameters") {
  const Bits parameters = {0xbfb1, 0x3e8d, 0xbf21, 0x3f86, 0xbe71, 0xbf9c, 0x3f1b, 0xbf3c,
                           0x3f83, 0x3df0, 0xbf8b, 0x3f03, 0xbee8, 0x3fa9, 0x3c20, 0xbf86};
  const Bits first = {0x3d43, 0x3c28, 0xbd64, 0x3c1e, 0x3d22, 0xbcd9, 0xbd34, 0x3d8c,
                      0x3b3c, 0xbd81, 0x3d1a, 0x3d03, 0xbd0a, 0xbbf9, 0x3d7c, 0xbb92};
  const Bits second = {0x3b63, 0x39dd, 0x3ae3, 0x3b90, 0x3aa9, 0x3a1c, 0x3b82, 0x3b48,
                       0x39b6, 0x3b0e, 0x3b8e, 0x3a81, 0x3a51, 0x3b8a, 0x3b25, 0x39ab};
  Bits p(16), m(16), v(16);
  for (int i = 0; i < 16; ++i)
    p[static_cast<std::size_t>(i)] = float_to_bf16(static_cast<float>(i * 37 % 23 - 11) / 8.0f);
  for (int step = 0; step < 6; ++step) {
    std::vector<float> g(16);
    for (int i = 0; i < 16; ++i)
      g[static_cast<std::size_t>(i)] = static_cast<float>((i * 53 + step * 29) % 31 - 15) / 64.0f;
    adamw_update(AdamWFactors({.learning_rate = 0.02,
                               .beta1 = 0.9,
                               .beta2 = 0.98,
                               .epsilon = 1e-8,
                               .weight_decay = 0.1,
                               .step = step + 1},
                              {.decays = true}),
                 0, p, g, m, v);
  }
  Count count;
  for (std::size_t i = 0; i < 16; ++i) {
    count.add(p[i], parameters[i]);
    count.add(m[i], first[i]);
    count.add(v[i], second[i]);
  }
  CHECK(count.worst <= 1);
  CHECK(count.different <= 2);
}

TEST_CASE("bf16 AdamW rounds each result of the formula once") {
  constexpr std::size_t kCount = 5000;
  const Bits p0 = random_bits(kCount, 1, -1, 1), m0 = random_bits(kCount, 2, -0.1, 0.1);
  const Bits v0 = random_bits(kCount, 3, 1e-4, 0.1);
  const std::vector<float> g = random_gradients(kCount, 4);
  Bits p = p0, m = m0, v = v0;
  adamw_update(AdamWFactors({.learning_rate = 1e-2,
                             .beta1 = 0.9,
                             .beta2 = 0.99,
                             .weight_decay = 0.1,
                             .step = 7,
                             .gradient_scale = 0.5f},
                            {.decays = true}),
               0, p, g, m, v);
  Count count;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double gradient = 0.5 * g[i];
    const double first = 0.9 * bf16_to_float(m0[i]) + 0.1 * gradient;
    const double second = 0.99 * bf16_to_float(v0[i]) + 0.01 * gradient * gradient;
    const double parameter = bf16_to_float(p0[i]) * (1 - 1e-2 * 0.1) -
                             1e-2 * (first / (1 - std::pow(0.9, 7))) /
                                 (std::sqrt(second / (1 - std::pow(0.99, 7))) + 1e-8);
    count.add(m[i], float_to_bf16(static_cast<float>(first)));
    count.add(v[i], float_to_bf16(static_cast<float>(second)));
    count.add(p[i], float_to_bf16(static_cast<float>(parameter)));
  }
  CHECK(count.worst <= 1);
  CHECK(count.different < static_cast<int>(kCount / 100));  // where fp32 falls beside a tie
}

TEST_CASE("a bf16 shard's bits do not depend on where it begins") {
  const ParameterGroups groups = {{37, {.decays = true}}, {61, {}}, {200, {.decays = true}}};
  const AdamWStep step{.learning_rate = 1e-2, .weight_decay = 0.1, .step = 3};
  const std::vector<float> g = random_gradients(200, 5);
  Bits p = random_bits(200, 1, -1, 1), m = random_bits(200, 2, -1, 1), v(200, 0x3f00);
  Bits p2 = p, m2 = m, v2 = v;
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

TEST_CASE("random rounding's bits do not depend on where a shard begins") {
  const ParameterGroups groups = {{1037, {.decays = true}}, {1500, {}}};
  const AdamWStep step{
      .learning_rate = 1e-2, .weight_decay = 0.1, .step = 3, .rounding_key = rounding_key(42, 3)};
  const std::vector<float> g = random_gradients(1500, 5);
  const Bits p0 = random_bits(1500, 1, -1, 1), m0 = random_bits(1500, 2, -1, 1), v0(1500, 0x3f00);
  Bits p = p0, m = m0, v = v0;
  adamw_update(step, groups, 0, p, g, m, v);
  Bits p2 = p0, m2 = m0, v2 = v0;
  for (const auto& [begin, end] : {std::pair{0u, 51u}, {51u, 52u}, {52u, 999u}, {999u, 1500u}})
    adamw_update(step, groups, begin, std::span(p2).subspan(begin, end - begin),
                 std::span(g).subspan(begin, end - begin),
                 std::span(m2).subspan(begin, end - begin),
                 std::span(v2).subspan(begin, end - begin));
  CHECK(p == p2);
  CHECK(m == m2);
  CHECK(v == v2);
  // Other steps, and other runs, round otherwise; nothing by more than a step of bf16.
  for (const std::uint64_t key : {rounding_key(42, 4), rounding_key(43, 3)}) {
    Bits p3 = p0, m3 = m0, v3 = v0;
    AdamWStep other = step;
    other.rounding_key = key;
    adamw_update(other, groups, 0, p3, g, m3, v3);
    Count count;
    for (std::size_t i = 0; i < p.size(); ++i) count.add(p3[i], p[i]);
    CHECK(count.worst == 1);
    CHECK(count.different > 300);
  }
}

TEST_CASE("updates that nearest rounding loses arrive on average when rounded randomly") {
  constexpr std::size_t kCount = 4096;
  constexpr int kSteps = 20;
  // Steps of 1e-4 from 1: a step of bf16 is 2⁻⁸ below 1 and 2⁻⁷ above.
  const auto mean_after = [](bool randomly) {
    const Bits one(kCount, 0x3f80);
    Bits p = one, m(kCount), v(kCount);
    const std::vector<float> g(kCount, 0.25f);
    for (std::int64_t step = 1; step <= kSteps; ++step)
      adamw_update(AdamWFactors({.learning_rate = 1e-4,
                                 .step = step,
                                 .rounding_key = randomly ? std::optional(rounding_key(7, step))
                                                          : std::nullopt},
                                {.decays = true}),
                   0, p, g, m, v);
    if (!randomly) CHECK(p == one);
    double sum = 0;
    for (const std::uint16_t bits : p) sum += bf16_to_float(bits);
    return sum / kCount;
  };
  CHECK(mean_after(false) == 1.0);
  // Each element has gone down 2⁻⁸ about every second time: of the mean of 4,096, the deviation is
  // √(20·0.0256·0.9744)·2⁻⁸/64 = 4.3e-5.
  CHECK(std::abs(mean_after(true) - (1.0 - kSteps * 1e-4)) < 2e-4);
}

TEST_CASE("random rounding keeps what bf16 holds, infinities and NaNs") {
  for (const std::uint32_t random : {0u, 1u, 0x7fffu, 0xffffu}) {
    for (const float held : {0.0f, -0.0f, 1.0f, -3.5f, 0x1p-133f, INFINITY, -INFINITY})
      CHECK(bf16_to_float(random_bf16(held, random)) == held);
    CHECK(std::isnan(bf16_to_float(random_bf16(NAN, random))));
    CHECK(std::isnan(bf16_to_float(random_bf16(std::bit_cast<float>(0x7f800001u), random))));
  }
  CHECK(random_bf16(1.00390625f, 0x7fffu) == 0x3f80);
  CHECK(random_bf16(1.00390625f, 0x8000u) == 0x3f81);
  CHECK(random_bf16(-1.00390625f, 0x8000u) == 0xbf81);
}

TEST_CASE("a bf16 state does not hide what is not finite") {
  Bits p(20, 0x3f80), m(20), v(20);
  std::vector<float> g(20, 0.1f);
  g[3] = NAN;
  adamw_update(AdamWFactors({.step = 1}, {.decays = true}), 0, p, g, m, v);
  CHECK(std::isnan(bf16_to_float(p[3])));
  CHECK(std::isfinite(bf16_to_float(p[4])));
}

}  // namespace
}  // namespace troupe::train

// The formulas that kernels share with the CPU.

#include "train/cuda/kernels/arithmetic.h"

#include <limits>

#include "runtime/collective/reduce_tree.h"
#include "tests/train/cuda/kernels/host_blocks.h"
#include "train/optimizer/adamw.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_CASE("kernels round to bf16 as the CPU does") {
  SeededRandom random(3);
  for (int i = 0; i < 20000; ++i) {
    auto bits = static_cast<std::uint32_t>(random.next_u64());
    if (i % 4 == 0) bits = (bits & 0xffff0000u) | 0x8000u;  // ties
    const float value = cuda::float_of(bits);
    CHECK(cuda::nearest_bf16(value).bits == float_to_bf16(value));
    const auto half = static_cast<std::uint16_t>(bits);
    CHECK(cuda::bits_of(cuda::widen(cuda::Bf16{half})) == cuda::bits_of(bf16_to_float(half)));
  }
  for (const float value : {kInfinity, -kInfinity, 0.0f, -0.0f, 3.4e38f, 1e-45f})
    CHECK(cuda::nearest_bf16(value).bits == float_to_bf16(value));
}

TEST_CASE("random rounding goes to a neighbour, and is right on average") {
  for (const float value : {1.0f, 1.001f, -1.001f, 0.3f, -1e-20f, 1e-41f, 3e38f}) {
    CAPTURE(value);
    const float towards_zero = cuda::float_of(cuda::bits_of(value) & 0xffff0000u);
    double sum = 0;
    for (std::uint32_t draw = 0; draw < 65536; ++draw) {
      const float rounded = cuda::widen(cuda::random_bf16(value, draw));
      sum += rounded;
      if (std::abs(rounded) < std::abs(towards_zero) ||
          cuda::bits_of(rounded) - cuda::bits_of(towards_zero) > 0x10000u)
        FAIL("no neighbour");
    }
    CHECK(std::abs(sum / 65536 - value) <= 1e-7 * std::abs(static_cast<double>(value)));
  }
  CHECK(cuda::widen(cuda::random_bf16(kInfinity, 0xffff)) == kInfinity);
  CHECK(cuda::widen(cuda::random_bf16(-kInfinity, 0xffff)) == -kInfinity);
  CHECK(std::isnan(cuda::widen(cuda::random_bf16(std::nanf(""), 0xffff))));
  CHECK(cuda::widen(cuda::random_bf16(0.0f, 0xffff)) == 0.0f);
}

TEST_CASE("Philox gives the words of its authors' reference") {
  const cuda::RandomWords zero = cuda::philox(0, 0);
  CHECK(zero.word[0] == 0x5f6fb709u);
  CHECK(zero.word[1] == 0x0d893f64u);
  CHECK(zero.word[2] == 0x4f121f81u);
  CHECK(zero.word[3] == 0x4f730a48u);
  const cuda::RandomWords other = cuda::philox(0x0123456789abcdefull, 0x1122334455667788ull);
  CHECK(other.word[0] == 0x4f334e17u);
  CHECK(other.word[3] == 0x664ae219u);
  // Neighbours share words, not bits.
  const auto even = cuda::rounding_bits(7, 10), odd = cuda::rounding_bits(7, 11);
  CHECK(even.parameter != odd.parameter);
  CHECK(even.first != even.second);
  CHECK(cuda::rounding_bits(8, 10).parameter != even.parameter);
}

TEST_CASE("slopes of activations are those of differences") {
  for (float x = -6.0f; x <= 6.0f; x += 0.37f) {
    CAPTURE(x);
    const float h = 1e-3f, up = 0.7f;
    const auto difference = [&](auto f) {
      return (static_cast<double>(f(x + h)) - static_cast<double>(f(x - h))) / (2.0 * h);
    };
    const cuda::SwigluGradient swiglu = cuda::swiglu_gradient(x, up, 1.3f);
    CHECK(std::abs(swiglu.gate - 1.3 * difference([&](float v) { return cuda::swiglu(v, up); })) <
          3e-3);
    CHECK(std::abs(swiglu.up - 1.3f * cuda::swiglu(x, 1.0f)) < 1e-6);
    CHECK(swiglu.act == cuda::swiglu(x, up));
    const cuda::GeluGradient gelu = cuda::gelu_gradient(x, 1.3f);
    CHECK(std::abs(gelu.x - 1.3 * difference([](float v) { return cuda::gelu(v); })) < 3e-3);
    CHECK(gelu.act == cuda::gelu(x));
  }
  CHECK(cuda::swiglu(-200.0f, 1.0f) == 0.0f);
  CHECK(cuda::swiglu(200.0f, 1.0f) == 200.0f);
}

TEST_CASE("an AdamW element has the CPU's bits") {
  const AdamWStep step{
      .learning_rate = 3e-3, .weight_decay = 0.1, .step = 7, .gradient_scale = 0.37f};
  const AdamWFactors factors(step, {.decays = true});
  auto p = tests::random_values(1000, 1), g = tests::random_values(1000, 2);
  auto m = tests::random_values(1000, 3, 0.1f), v = tests::random_values(1000, 4, 0.1f);
  for (float& x : v) x = std::abs(x);
  const cuda::AdamWConstants constants{
      factors.beta1_rest,      factors.beta2,   factors.beta2_rest, factors.step_size,
      factors.root_correction, factors.epsilon, factors.keep};
  auto expected_p = p, expected_m = m, expected_v = v;
  adamw_update(factors, 0, expected_p, g, expected_m, expected_v);
  for (std::size_t i = 0; i < p.size(); ++i) {
    const cuda::AdamWElement e =
        cuda::adamw_updated(constants, {p[i], m[i], v[i]}, g[i] * factors.gradient_scale);
    CHECK(e.parameter == expected_p[i]);
    CHECK(e.first == expected_m[i]);
    CHECK(e.second == expected_v[i]);
  }
}

TEST_CASE("values fold by the collectives' tree") {
  for (int count = 1; count <= 64; ++count) {
    CAPTURE(count);
    const auto values = tests::random_values(count, static_cast<std::uint64_t>(count));
    std::vector<const std::byte*> inputs;
    for (const float& value : values) inputs.push_back(reinterpret_cast<const std::byte*>(&value));
    float expected = 0;
    collective::tree_reduce(inputs, reinterpret_cast<std::byte*>(&expected), 1,
                            collective::DataType::kFloat32, collective::ReduceOp::kSum);
    float many[64] = {};
    std::copy(values.begin(), values.end(), many);
    cuda::fold_tree(many, count);
    CHECK(many[0] == expected);
    if (count > 8) continue;
    float few[8] = {};
    std::copy(values.begin(), values.end(), few);
    cuda::fold_tree(few, count);
    CHECK(few[0] == expected);
  }
}

TEST_CASE("a query sees the keys from its first to its own") {
  const std::int32_t first[] = {0, 1, 1, 3, 0, 0, 2, 2};  // two batch rows of four
  CHECK(cuda::keys_seen(nullptr, 1, 2, 4, 4).first == 0);
  CHECK(cuda::keys_seen(nullptr, 1, 2, 4, 4).end == 3);
  CHECK(cuda::keys_seen(nullptr, 0, 0, 1, 9).end == 9);  // behind a cache
  CHECK(cuda::keys_seen(first, 0, 3, 4, 4).first == 3);
  CHECK(cuda::keys_seen(first, 1, 2, 4, 4).first == 2);
}

}  // namespace
}  // namespace troupe::train

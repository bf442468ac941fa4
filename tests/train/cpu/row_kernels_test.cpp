#include <bit>

#include "tests/train/cpu/operator_fixture.h"
#include "train/cpu/exp.h"

namespace troupe::train::tests {
namespace {

// Whole vectors and some elements more.
constexpr std::int64_t kRaggedRows = 3, kRaggedWidth = 2 * 16 + 5;

// Random values with extreme ones among them.
Vector with_extremes(std::int64_t count, std::uint64_t seed) {
  Vector out = random_vector(count, seed);
  const float extremes[] = {0.0f,     -0.0f, 1e-42f,    -1e-42f,       87.5f, -87.5f,
                            1000.0f,  -1e4f, INFINITY,  -INFINITY,     NAN,   3e38f,
                            -88.376f, 88.4f, -87.3365f, -1.17549e-38f, 20.0f, -16.7f};
  std::size_t at = 0;
  for (const float x : extremes) {
    out[at] = x;
    at = (at + 7) % out.size();
  }
  return out;
}

// The same bits; which NaN it is does not count.
bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

TEST_CASE("SwiGLU in vectors rounds like its formula, element by element") {
  OperatorFixture f;
  const std::int64_t width = kRaggedWidth, count = kRaggedRows * width;
  Vector gate_up = with_extremes(2 * count, 1);
  for (float& x : gate_up) x *= 5;
  const Vector dact = random_vector(count, 2), start = gate_up;
  Vector act(static_cast<std::size_t>(count)), again = act;
  f.operators->swiglu_forward(gate_up.data(), act.data(), kRaggedRows, width);
  f.operators->swiglu_backward(gate_up.data(), dact.data(), again.data(), kRaggedRows, width);
  for (std::int64_t i = 0; i < count; ++i) {
    CAPTURE(i);
    const auto gate = static_cast<std::size_t>(i / width * 2 * width + i % width);
    const std::size_t up = gate + static_cast<std::size_t>(width), at = static_cast<std::size_t>(i);
    const float g = start[gate], u = start[up], d = dact[at];
    const float sigmoid = 1.0f / (1.0f + fast_exp(-g));
    const float silu = g * sigmoid;
    CHECK(same(act[at], silu * u));
    CHECK(same(again[at], silu * u));
    CHECK(same(gate_up[gate], d * u * (sigmoid * (1.0f + g * (1.0f - sigmoid)))));
    CHECK(same(gate_up[up], d * silu));
  }
}

TEST_CASE("GELU in vectors rounds like its formula, element by element") {
  OperatorFixture f;
  const std::int64_t count = kRaggedRows * kRaggedWidth;
  Vector x = with_extremes(count, 3);
  const Vector dact = random_vector(count, 4), start = x;
  Vector act(static_cast<std::size_t>(count)), again = act;
  f.operators->gelu_forward(x.data(), act.data(), count);
  f.operators->gelu_backward(x.data(), dact.data(), again.data(), count);
  constexpr float kFactor = 1.5957691216057308f, kCube = 0.044715f;
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(i);
    const float v = start[i];
    const float s = 1.0f / (1.0f + fast_exp(-kFactor * (v + kCube * v * v * v)));
    CHECK(same(act[i], v * s));
    CHECK(same(again[i], v * s));
    const float slope = kFactor * (1.0f + 3.0f * kCube * v * v);
    CHECK(same(x[i], dact[i] * (s + v * s * (1.0f - s) * slope)));
  }
}

TEST_CASE("RoPE in vectors rounds like its formula, whatever a head's half is a multiple of") {
  OperatorFixture f;
  constexpr std::int64_t kRows = 3, kHeads = 2;
  const std::vector<std::int32_t> positions = {1, 0, 2};
  for (const std::int64_t half : {1, 5, 8, 12, 24, 32, 40}) {
    const std::int64_t stride = kHeads * 2 * half + 3;
    const Vector cosine = random_vector(3 * half, 5), sine = random_vector(3 * half, 6);
    const Vector start = random_vector(kRows * stride, 7);
    for (const RopeDirection direction : {RopeDirection::kForward, RopeDirection::kBackward}) {
      Vector x = start, expected = start;
      f.operators->rope(x.data(), stride, positions.data(), cosine.data(), sine.data(), kRows,
                        kHeads, 2 * half, direction);
      for (std::int64_t row = 0; row < kRows; ++row)
        for (std::int64_t head = 0; head < kHeads; ++head)
          for (std::int64_t i = 0; i < half; ++i) {
            const auto low = static_cast<std::size_t>(row * stride + head * 2 * half + i);
            const std::size_t high = low + static_cast<std::size_t>(half);
            const auto angle =
                static_cast<std::size_t>(positions[static_cast<std::size_t>(row)] * half + i);
            const float c = cosine[angle];
            const float s = direction == RopeDirection::kForward ? sine[angle] : -sine[angle];
            expected[low] = start[low] * c - start[high] * s;
            expected[high] = start[high] * c + start[low] * s;
          }
      CAPTURE(half);
      CHECK(x == expected);
    }
  }
}

}  // namespace
}  // namespace troupe::train::tests

// What the optimizer's kernels do, against train/optimizer and the collectives' tree.

#include <limits>

#include "runtime/collective/reduce_tree.h"
#include "tests/train/cuda/kernels/host_blocks.h"
#include "train/cuda/kernels/elementwise.h"
#include "train/cuda/kernels/tile_sums.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/gradient_norm.h"

namespace troupe::train::tests {
namespace {

template <class State>
struct AdamWStates {
  std::vector<State> p, m, v;
  std::vector<float> g;
  explicit AdamWStates(std::int64_t count)
      : p(stored<State>(random_values(count, 1))),
        m(stored<State>(random_values(count, 3, 0.1f))),
        v(stored<State>(random_values(count, 4, 0.1f))),
        g(random_values(count, 2)) {
    for (State& x : v) x = cuda::narrow<State>(std::abs(cuda::widen(x)));
  }
};

const AdamWStep kStep{
    .learning_rate = 3e-3, .weight_decay = 0.1, .step = 7, .gradient_scale = 0.37f};

template <int N, class State>
void run_adamw(AdamWStates<State>& s, std::int64_t at, std::int64_t count, bool randomly,
               std::int64_t first_element) {
  const AdamWFactors f(kStep);
  run_each(cuda::AdamW<State, N>{s.p.data() + at,
                                 s.g.data() + at,
                                 s.m.data() + at,
                                 s.v.data() + at,
                                 &f.gradient_scale,
                                 {f.beta1_rest, f.beta2, f.beta2_rest, f.step_size,
                                  f.root_correction, f.epsilon, f.keep(true)},
                                 randomly,
                                 99,
                                 first_element},
           count / N);
}

std::span<std::uint16_t> bits_of_all(std::vector<Bf16>& values) {
  return {reinterpret_cast<std::uint16_t*>(values.data()), values.size()};
}

TEST_CASE("AdamW kernels have the optimizer's bits, fp32 and bf16") {
  constexpr std::int64_t kCount = 64;
  AdamWStates<float> expected(kCount), packs(kCount), singles(kCount);
  adamw_update(kStep, true, expected.p, expected.g, expected.m, expected.v);
  run_adamw<kPack>(packs, 0, kCount, false, 0);
  run_adamw<1>(singles, 0, kCount, false, 0);
  for (const auto* found : {&packs, &singles}) {
    CHECK(found->p == expected.p);
    CHECK(found->m == expected.m);
    CHECK(found->v == expected.v);
  }
  AdamWStates<Bf16> expected_bf16(kCount), found(kCount);
  adamw_update(kStep, true, bits_of_all(expected_bf16.p), expected_bf16.g,
               bits_of_all(expected_bf16.m), bits_of_all(expected_bf16.v));
  run_adamw<kPack>(found, 0, kCount, false, 0);
  CHECK(widened(found.p) == widened(expected_bf16.p));
  CHECK(widened(found.m) == widened(expected_bf16.m));
  CHECK(widened(found.v) == widened(expected_bf16.v));
}

TEST_CASE("random rounding of AdamW depends on the flat element alone") {
  constexpr std::int64_t kCount = 64;
  AdamWStates<Bf16> whole(kCount), cut(kCount), nearest(kCount);
  run_adamw<kPack>(whole, 0, kCount, true, 1000);
  // The same range in two shards, the second from an odd element on.
  run_adamw<1>(cut, 0, 13, true, 1000);
  run_adamw<1>(cut, 13, 3, true, 1013);
  run_adamw<kPack>(cut, 16, kCount - 16, true, 1016);
  CHECK(widened(cut.p) == widened(whole.p));
  CHECK(widened(cut.m) == widened(whole.m));
  CHECK(widened(cut.v) == widened(whole.v));
  // A pack that begins at an odd element.
  AdamWStates<Bf16> odd(kCount), odd_singles(kCount);
  run_adamw<kPack>(odd, 0, kCount, true, 1001);
  run_adamw<1>(odd_singles, 0, kCount, true, 1001);
  CHECK(widened(odd.p) == widened(odd_singles.p));
  CHECK(widened(odd.p) != widened(whole.p));
  // Never further than one step of bf16 from what nearest rounding gives. First moments fall
  // anywhere between two of its numbers: a quarter is rounded to the further one.
  run_adamw<kPack>(nearest, 0, kCount, false, 1000);
  const auto a = widened(whole.m), b = widened(nearest.m);
  int different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    CHECK(std::abs(a[i] - b[i]) <= std::abs(b[i]) / 64);
    different += a[i] != b[i];
  }
  CHECK(different > 5);
  CHECK(different < 32);
}

TEST_CASE("parts are summed by the collectives' tree") {
  const auto test = []<class T, int kMax, int N>(T, std::integral_constant<int, kMax>,
                                                 std::integral_constant<int, N>, int count,
                                                 collective::DataType type) {
    CAPTURE(count);
    constexpr std::int64_t kElements = 24;
    std::vector<std::vector<T>> parts;
    std::vector<const std::byte*> inputs;
    for (int i = 0; i < count; ++i)
      parts.push_back(stored<T>(random_values(kElements, static_cast<std::uint64_t>(i + 1))));
    for (const auto& part : parts)
      inputs.push_back(reinterpret_cast<const std::byte*>(part.data()));
    std::vector<T> expected(kElements);
    collective::tree_reduce(inputs, reinterpret_cast<std::byte*>(expected.data()), kElements, type,
                            collective::ReduceOp::kSum);
    cuda::TreeSum<T, T, kMax, N> sum{};
    for (int i = 0; i < count; ++i) sum.parts[i] = parts[static_cast<std::size_t>(i)].data();
    sum.count = count;
    sum.out = parts[static_cast<std::size_t>(count / 2)].data();  // over a part
    run_each(sum, kElements / N);
    CHECK(widened(parts[static_cast<std::size_t>(count / 2)]) == widened(expected));
  };
  using Few = std::integral_constant<int, 8>;
  using Many = std::integral_constant<int, 64>;
  for (const int count : {1, 2, 3, 5, 8}) {
    test(float{}, Few{}, Few{}, count, collective::DataType::kFloat32);
    test(Bf16{}, Few{}, Few{}, count, collective::DataType::kBfloat16);
  }
  for (const int count : {1, 7, 33, 64}) {
    test(float{}, Many{}, std::integral_constant<int, 1>{}, count, collective::DataType::kFloat32);
    test(Bf16{}, Many{}, std::integral_constant<int, 1>{}, count, collective::DataType::kBfloat16);
  }
}

TEST_CASE("tiles' sums of squares are the optimizer's") {
  const auto test = []<int N>(std::integral_constant<int, N>, std::int64_t count,
                              std::int64_t tile_elements) {
    auto x = random_values(count, 5);
    const std::int64_t tiles = (count + tile_elements - 1) / tile_elements;
    std::vector<double> sums(static_cast<std::size_t>(tiles), -1.0);
    auto shared = std::make_unique<cuda::TileShared>();
    const auto run = [&] {
      const cuda::TileSums a{x.data(), count, tile_elements, sums.data()};
      run_grid<cuda::TileBlock>(
          tiles, 1, 1, [&](const auto& block) { cuda::tile_sum_block<N>(block, *shared, a); });
    };
    run();
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const std::int64_t begin = tile * tile_elements;
      const std::int64_t size = std::min(tile_elements, count - begin);
      const double expected = tile_sum_of_squares(
          std::span(x).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size)));
      CHECK(std::abs(sums[static_cast<std::size_t>(tile)] - expected) <= 1e-12 * expected);
    }
    x.back() = 3e38f;
    run();
    CHECK(std::isfinite(sums.back()));
    x.back() = -std::numeric_limits<float>::infinity();
    run();
    CHECK_FALSE(std::isfinite(sums.back()));
    CHECK(std::isfinite(sums.front()));
  };
  test(std::integral_constant<int, kPack>{}, 10003, 4096);
  test(std::integral_constant<int, 1>{}, 999, 500);
  test(std::integral_constant<int, kPack>{}, 4097, 4096);
}

}  // namespace
}  // namespace troupe::train::tests

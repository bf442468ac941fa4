// Random rounding by the optimizer's kernels. Their values: launchers_test.

#include "tests/train/cuda/kernels/host_blocks.h"
#include "train/cuda/kernels/elementwise.h"
#include "train/optimizer/adamw.h"

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
  const AdamWFactors f(kStep, {.decays = true});
  run_each(cuda::AdamW<State, N>{s.p.data() + at,
                                 s.g.data() + at,
                                 s.m.data() + at,
                                 s.v.data() + at,
                                 &f.gradient_scale,
                                 {f.beta1_rest, f.beta2, f.beta2_rest, f.step_size,
                                  f.root_correction, f.epsilon, f.keep},
                                 randomly,
                                 99,
                                 first_element},
           count / N);
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

}  // namespace
}  // namespace troupe::train::tests

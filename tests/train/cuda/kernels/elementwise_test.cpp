// Kernels without a word between threads, against the CPU's operators.

#include "train/cuda/kernels/elementwise.h"

#include "tests/train/cuda/kernels/host_blocks.h"
#include "train/tensor/convert.h"

namespace troupe::train::tests {
namespace {

TEST_CASE("kernels add, convert, and gather rows") {
  for_types_and_packs([]<class T, int N>(T, std::integral_constant<int, N>) {
    constexpr std::int64_t kRows = 5, kWidth = 24, kCount = kRows * kWidth;
    const auto a = random_held<T>(kCount, 1), b = random_held<T>(kCount, 2);
    std::vector<float> sum(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
    const auto x = stored<T>(a), y = stored<T>(b);
    std::vector<T> out(a.size());
    run_each(cuda::Add<T, N>{x.data(), y.data(), out.data()}, kCount / N);
    CHECK(widened(out) == widened(stored<T>(sum)));

    std::vector<Bf16> rounded(a.size());
    run_each(cuda::Convert<float, Bf16, N>{sum.data(), rounded.data()}, kCount / N);
    for (std::size_t i = 0; i < sum.size(); ++i) CHECK(rounded[i].bits == float_to_bf16(sum[i]));
    std::vector<float> back(a.size());
    run_each(cuda::Convert<Bf16, float, N>{rounded.data(), back.data()}, kCount / N);
    CHECK(back == widened(rounded));
    std::vector<float> in_place = sum;
    run_each(cuda::RoundToBf16<N>{in_place.data(), in_place.data()}, kCount / N);
    CHECK(in_place == back);

    const std::vector<std::int32_t> ids{3, 0, 3, 4};
    std::vector<float> rows(ids.size() * kWidth);
    run_each(cuda::EmbeddingForward<T, float, N>{ids.data(), x.data(), rows.data(), kWidth},
             4 * kWidth / N);
    for (std::size_t row = 0; row < ids.size(); ++row)
      for (std::size_t c = 0; c < kWidth; ++c)
        CHECK(rows[row * kWidth + c] == a[static_cast<std::size_t>(ids[row]) * kWidth + c]);
    std::vector<T> same(rows.size());
    run_each(cuda::EmbeddingForward<T, T, N>{ids.data(), x.data(), same.data(), kWidth},
             4 * kWidth / N);
    CHECK(widened(same) == rows);
  });
}

TEST_CASE("kernels add biases to strided rows and nothing beside them") {
  for_types_and_packs([]<class T, int N>(T, std::integral_constant<int, N>) {
    constexpr std::int64_t kRows = 3, kWidth = 16, kStride = 24;
    const auto before = random_held<T>(kRows * kStride, 3);
    const auto bias = random_values(kWidth, 4);
    auto expected = before;
    CpuReference()->add_bias(expected.data(), kStride, bias.data(), kRows, kWidth);
    auto y = stored<T>(before);
    run_each(cuda::AddBias<T, N>{y.data(), kStride, bias.data(), kWidth}, kRows * kWidth / N);
    CHECK(widened(y) == widened(stored<T>(expected)));
  });
}

TEST_CASE("kernels rotate heads as the CPU, there and back") {
  for_types_and_packs([]<class T, int N>(T, std::integral_constant<int, N>) {
    constexpr std::int64_t kRows = 4, kHeads = 3, kHeadDim = 16, kStride = 56, kPositions = 9;
    const auto before = random_held<T>(kRows * kStride, 5);
    const auto cosine = random_values(kPositions * kHeadDim / 2, 6);
    const auto sine = random_values(kPositions * kHeadDim / 2, 7);
    const std::vector<std::int32_t> positions{8, 0, 3, 3};
    for (const RopeDirection direction : {RopeDirection::kForward, RopeDirection::kBackward}) {
      auto expected = before;
      CpuReference()->rope(expected.data(), kStride, positions.data(), cosine.data(), sine.data(),
                           kRows, kHeads, kHeadDim, direction);
      auto x = stored<T>(before);
      run_each(
          cuda::Rope<T, N>{x.data(), kStride, positions.data(), cosine.data(), sine.data(), kHeads,
                           kHeadDim / 2, direction == RopeDirection::kForward ? 1.0f : -1.0f},
          kRows * kHeads * (kHeadDim / 2) / N);
      CHECK(widened(x) == widened(stored<T>(expected)));
    }
  });
}

TEST_CASE("kernels' dropout is the CPU's, bit for bit") {
  for_types_and_packs([]<class T, int N>(T, std::integral_constant<int, N>) {
    constexpr std::int64_t kRows = 5, kWidth = 264;
    const std::vector<std::int32_t> samples{7, 7, 7, 2, 2}, places{4, 5, 6, 0, 1};
    Dropout dropout = dropout_of(0.3);
    dropout.seed = 42, dropout.epoch = 3;
    dropout.site = dropout_site(DropoutPlace::kAttentionOutput, 3);
    dropout.samples = samples.data(), dropout.tokens = places.data();
    const auto x = random_held<T>(kRows * kWidth, 1), residual = random_held<T>(kRows * kWidth, 2);
    const auto from = stored<T>(x), added = stored<T>(residual);
    for (const bool adds : {false, true}) {
      std::vector<float> expected(x.size());
      CpuReference()->dropout(dropout, x.data(), adds ? residual.data() : nullptr, expected.data(),
                              kRows, kWidth);
      std::vector<T> out(x.size());
      run_each(cuda::DropOut<T, N>{dropout, from.data(), adds ? added.data() : nullptr, out.data(),
                                   kWidth},
               kRows * kWidth / N);
      CHECK(widened(out) == widened(stored<T>(expected)));
    }
  });
}

TEST_CASE("kernels' activations are the CPU's") {
  for_types_and_packs([]<class T, int N>(T, std::integral_constant<int, N>) {
    constexpr std::int64_t kRows = 3, kWidth = 40;
    const CpuReference cpu;
    const auto gate_up = random_held<T>(kRows * 2 * kWidth, 8, 4.0f);
    const auto dact = random_held<T>(kRows * kWidth, 9);
    std::vector<float> expected(dact.size());
    cpu->swiglu_forward(gate_up.data(), expected.data(), kRows, kWidth);
    auto x = stored<T>(gate_up);
    std::vector<T> act(dact.size());
    run_each(cuda::Swiglu<T, N>{x.data(), act.data(), kWidth}, kRows * kWidth / N);
    check_close(widened(act), expected, rounding<T>());

    auto gradient = gate_up;
    cpu->swiglu_backward(gradient.data(), dact.data(), expected.data(), kRows, kWidth);
    auto in_place = stored<T>(dact);
    run_each(cuda::SwigluBackward<T, N>{x.data(), in_place.data(), in_place.data(), kWidth},
             kRows * kWidth / N);
    check_close(widened(x), gradient, rounding<T>());
    CHECK(widened(in_place) == widened(act));

    const std::int64_t count = kRows * kWidth;
    auto v = stored<T>(dact), d = stored<T>(dact);
    auto gelu_gradient = dact;
    cpu->gelu_forward(dact.data(), expected.data(), count);
    run_each(cuda::Gelu<T, N>{v.data(), act.data()}, count / N);
    check_close(widened(act), expected, rounding<T>());
    cpu->gelu_backward(gelu_gradient.data(), dact.data(), nullptr, count);
    run_each(cuda::GeluBackward<T, N>{v.data(), d.data(), d.data()}, count / N);
    check_close(widened(v), gelu_gradient, rounding<T>());
    CHECK(widened(d) == widened(act));
  });
}

TEST_CASE("positions of rows are found by either division") {
  const std::int64_t large = (std::int64_t{1} << 33) + 5;
  CHECK(cuda::row_column(large, 7).row == large / 7);
  CHECK(cuda::row_column(large, 7).column == large % 7);
  CHECK(cuda::row_column(4294967295, 10).row == 429496729);
  CHECK(cuda::row_column(4294967295, 10).column == 5);
}

}  // namespace
}  // namespace troupe::train::tests

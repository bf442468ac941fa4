// Norms and sums down columns, block by block, against the CPU's operators.

#include "train/cuda/kernels/norms.h"

#include "tests/train/cuda/kernels/host_blocks.h"
#include "train/cuda/kernels/column_sums.h"
#include "train/cuda/kernels/elementwise.h"

namespace troupe::train::tests {
namespace {

using cuda::ColumnTerm;

// out += the column sums of a's rows, as the library launches them.
template <ColumnTerm kTerm, int N, class T>
void run_column_sums(cuda::ColumnSums<T> a, const std::vector<float*>& outs) {
  a.parts = cuda::row_parts(a.rows, a.width);
  a.lanes = cuda::column_lanes(a.width, N);
  std::vector<float> scratch(
      static_cast<std::size_t>(cuda::column_sets(kTerm) * a.parts.count * a.width), -7.0f);
  a.sums = scratch.data();
  auto shared = std::make_unique<cuda::ColumnShared<N, cuda::column_sets(kTerm)>>();
  run_grid<cuda::ColumnBlock>(
      (a.width + a.lanes * N - 1) / (a.lanes * N), a.parts.count, 1,
      [&](const auto& block) { cuda::column_sums_block<T, N, kTerm>(block, *shared, a); });
  for (int set = 0; set < cuda::column_sets(kTerm); ++set) {
    cuda::AddPartsShared add_shared{};
    const cuda::AddParts add{scratch.data() + set * a.parts.count * a.width, a.parts.count, a.width,
                             outs[static_cast<std::size_t>(set)]};
    run_grid<cuda::ColumnBlock>(
        (a.width + cuda::kPartLanes - 1) / cuda::kPartLanes, 1, 1,
        [&](const auto& block) { cuda::add_parts_block(block, add_shared, add); });
  }
}

// Rows of 128 threads' packs and a bit more, so that threads have several or none.
template <int N>
constexpr std::int64_t kNormWidth = N == 1 ? 301 : 1096;

TEST_CASE("kernels' RMS norms are the CPU's") {
  for_types_and_packs([]<class T, int N>(T, std::integral_constant<int, N>) {
    constexpr std::int64_t kRows = 37, kWidth = kNormWidth<N>, kCount = kRows * kWidth;
    const CpuReference cpu;
    const auto x = random_held<T>(kCount, 1), delta = random_held<T>(kCount, 2);
    const auto weight = random_values(kWidth, 3);
    std::vector<float> added(kCount), y(kCount), rstd(kRows);
    for (std::size_t i = 0; i < x.size(); ++i) added[i] = x[i] + delta[i];
    added = widened(stored<T>(added));
    cpu->rms_norm_forward(added.data(), weight.data(), y.data(), rstd.data(), kRows, kWidth, 1e-5f);

    // The sum over its own first operand.
    auto sum = stored<T>(x);
    const auto d = stored<T>(delta);
    std::vector<T> normed(kCount), again(kCount);
    std::vector<float> found_rstd(kRows);
    cuda::NormShared<float> shared{};
    const cuda::RmsForward<T> forward{sum.data(), d.data(),      weight.data(),
                                      sum.data(), normed.data(), found_rstd.data(),
                                      kRows,      kWidth,        1e-5f};
    run_grid<cuda::NormBlock>(kRows, 1, 1, [&](const auto& block) {
      cuda::rms_forward_row<T, N>(block, shared, forward);
    });
    CHECK(widened(sum) == added);
    check_close(found_rstd, rstd, 2e-6);
    check_close(widened(normed), y, rounding<T>());
    run_each(
        cuda::RmsApply<T, N>{sum.data(), weight.data(), found_rstd.data(), again.data(), kWidth},
        kCount / N);
    CHECK(widened(again) == widened(normed));
    std::vector<T> plain(kCount);
    const cuda::RmsForward<T> no_sum{sum.data(), nullptr,      weight.data(),
                                     nullptr,    plain.data(), found_rstd.data(),
                                     kRows,      kWidth,       1e-5f};
    run_grid<cuda::NormBlock>(kRows, 1, 1, [&](const auto& block) {
      cuda::rms_forward_row<T, N>(block, shared, no_sum);
    });
    CHECK(widened(plain) == widened(normed));

    const auto dy = random_held<T>(kCount, 4), dx_before = random_held<T>(kCount, 5);
    auto dx = dx_before;
    const auto dweight_before = random_values(kWidth, 6);
    auto dweight = dweight_before, found_dweight = dweight_before;
    cpu->rms_norm_backward(dy.data(), added.data(), weight.data(), rstd.data(), dx.data(),
                           dweight.data(), kRows, kWidth);
    const auto stored_dy = stored<T>(dy);
    auto found_dx = stored<T>(dx_before);
    const cuda::RmsBackward<T> backward{stored_dy.data(), sum.data(), weight.data(), rstd.data(),
                                        found_dx.data(),  kRows,      kWidth};
    run_grid<cuda::NormBlock>(kRows, 1, 1, [&](const auto& block) {
      cuda::rms_backward_row<T, N>(block, shared, backward);
    });
    check_close(widened(found_dx), dx, rounding<T>());
    run_column_sums<ColumnTerm::kRms, N, T>({.dy = stored_dy.data(),
                                             .stride = kWidth,
                                             .x = sum.data(),
                                             .x_stride = kWidth,
                                             .rstd = rstd.data(),
                                             .rows = kRows,
                                             .heads = 1,
                                             .width = kWidth},
                                            {found_dweight.data()});
    check_close(found_dweight, dweight, 1e-5);
  });
}

TEST_CASE("kernels' layer norms are the CPU's") {
  for_types_and_packs([]<class T, int N>(T, std::integral_constant<int, N>) {
    constexpr std::int64_t kRows = 35, kWidth = kNormWidth<N>, kCount = kRows * kWidth;
    const CpuReference cpu;
    const auto x = random_held<T>(kCount, 1, 3.0f);
    const auto weight = random_values(kWidth, 3), bias = random_values(kWidth, 4);
    std::vector<float> y(kCount), mean(kRows), rstd(kRows);
    cpu->layer_norm_forward(x.data(), weight.data(), bias.data(), y.data(), mean.data(),
                            rstd.data(), kRows, kWidth, 1e-5f);
    const auto from = stored<T>(x);
    std::vector<T> normed(kCount), again(kCount);
    std::vector<float> found_mean(kRows), found_rstd(kRows);
    cuda::NormShared<float> shared{};
    const cuda::LayerForward<T> forward{
        from.data(),       weight.data(), bias.data(), normed.data(), found_mean.data(),
        found_rstd.data(), kRows,         kWidth,      1e-5f};
    run_grid<cuda::NormBlock>(kRows, 1, 1, [&](const auto& block) {
      cuda::layer_forward_row<T, N>(block, shared, forward);
    });
    check_close(found_mean, mean, 2e-6);
    check_close(found_rstd, rstd, 2e-6);
    check_close(widened(normed), y, rounding<T>());
    run_each(cuda::LayerApply<T, N>{from.data(), weight.data(), bias.data(), found_mean.data(),
                                    found_rstd.data(), again.data(), kWidth},
             kCount / N);
    CHECK(widened(again) == widened(normed));

    const auto dy = random_held<T>(kCount, 5), dx_before = random_held<T>(kCount, 6);
    auto dx = dx_before;
    const auto before = random_values(kWidth, 7);
    auto dweight = before, dbias = before, found_dweight = before, found_dbias = before;
    cpu->layer_norm_backward(dy.data(), x.data(), weight.data(), mean.data(), rstd.data(),
                             dx.data(), dweight.data(), dbias.data(), kRows, kWidth);
    const auto stored_dy = stored<T>(dy);
    auto found_dx = stored<T>(dx_before);
    cuda::NormShared<cuda::TwoSums> two{};
    const cuda::LayerBackward<T> backward{
        stored_dy.data(), from.data(),     weight.data(), mean.data(),
        rstd.data(),      found_dx.data(), kRows,         kWidth};
    run_grid<cuda::NormBlock>(kRows, 1, 1, [&](const auto& block) {
      cuda::layer_backward_row<T, N>(block, two, backward);
    });
    check_close(widened(found_dx), dx, rounding<T>());
    run_column_sums<ColumnTerm::kLayer, N, T>({.dy = stored_dy.data(),
                                               .stride = kWidth,
                                               .x = from.data(),
                                               .x_stride = kWidth,
                                               .mean = mean.data(),
                                               .rstd = rstd.data(),
                                               .rows = kRows,
                                               .heads = 1,
                                               .width = kWidth},
                                              {found_dweight.data(), found_dbias.data()});
    check_close(found_dweight, dweight, 1e-5);
    check_close(found_dbias, dbias, 1e-5);
  });
}

TEST_CASE("kernels' norms over heads are the CPU's") {
  for_types_and_packs([]<class T, int N>(T, std::integral_constant<int, N>) {
    // Not whole blocks of heads; rows with something behind the heads.
    constexpr std::int64_t kRows = 21, kHeads = 3, kHeadDim = 72, kXStride = 248, kStride = 224;
    const CpuReference cpu;
    const auto x = random_held<T>(kRows * kXStride, 1);
    const auto weight = random_values(kHeadDim, 2);
    std::vector<float> y(kRows * kStride, 5.0f), rstd(kRows * kHeads);
    cpu->head_norm_forward(x.data(), kXStride, weight.data(), y.data(), kStride, rstd.data(), kRows,
                           kHeads, kHeadDim, 1e-6f);
    const auto from = stored<T>(x);
    auto normed = stored<T>(std::vector<float>(y.size(), 5.0f));
    std::vector<float> found_rstd(rstd.size());
    cuda::HeadShared shared{};
    const cuda::HeadForward<T> forward{
        from.data(),       kXStride, weight.data(), normed.data(), kStride,
        found_rstd.data(), kRows,    kHeads,        kHeadDim,      1e-6f};
    const std::int64_t grid = (kRows * kHeads + cuda::kHeadsPerBlock - 1) / cuda::kHeadsPerBlock;
    run_grid<cuda::NormBlock>(grid, 1, 1, [&](const auto& block) {
      cuda::head_forward_block<T, N>(block, shared, forward);
    });
    check_close(found_rstd, rstd, 2e-6);
    check_close(widened(normed), y, rounding<T>());

    const auto dy = random_held<T>(kRows * kStride, 3);
    auto dx = dy;
    const auto before = random_values(kHeadDim, 4);
    auto dweight = before, found_dweight = before;
    cpu->head_norm_backward(dx.data(), kStride, x.data(), kXStride, weight.data(), rstd.data(),
                            dweight.data(), kRows, kHeads, kHeadDim);
    auto found = stored<T>(dy);
    run_column_sums<ColumnTerm::kRms, N, T>({.dy = found.data(),
                                             .stride = kStride,
                                             .x = from.data(),
                                             .x_stride = kXStride,
                                             .rstd = rstd.data(),
                                             .rows = kRows * kHeads,
                                             .heads = kHeads,
                                             .width = kHeadDim},
                                            {found_dweight.data()});
    const cuda::HeadBackward<T> backward{found.data(), kStride,       from.data(),
                                         kXStride,     weight.data(), rstd.data(),
                                         kRows,        kHeads,        kHeadDim};
    run_grid<cuda::NormBlock>(grid, 1, 1, [&](const auto& block) {
      cuda::head_backward_block<T, N>(block, shared, backward);
    });
    check_close(found_dweight, dweight, 1e-5);
    check_close(widened(found), dx, rounding<T>());
  });
}

TEST_CASE("kernels' bias gradients are the CPU's, over one part of rows and many") {
  for_types_and_packs([]<class T, int N>(T, std::integral_constant<int, N>) {
    for (const std::int64_t rows : {1, 31, 33, 700}) {
      CAPTURE(rows);
      constexpr std::int64_t kWidth = 40, kStride = 48;
      const auto dy = random_held<T>(rows * kStride, 1);
      const auto before = random_values(kWidth, 2);
      auto expected = before, found = before;
      CpuReference()->bias_backward(dy.data(), kStride, expected.data(), rows, kWidth);
      const auto from = stored<T>(dy);
      run_column_sums<ColumnTerm::kPlain, N, T>(
          {.dy = from.data(), .stride = kStride, .rows = rows, .heads = 1, .width = kWidth},
          {found.data()});
      check_close(found, expected, 1e-5);
    }
  });
}

TEST_CASE("rows are cut into parts that cover them") {
  for (const std::int64_t rows : {1, 32, 33, 4096, 1000003})
    for (const std::int64_t width : {1, 64, 896, 18944}) {
      const cuda::RowParts parts = cuda::row_parts(rows, width);
      CAPTURE(rows);
      CAPTURE(width);
      CHECK(parts.count * parts.rows_per_part >= rows);
      CHECK((parts.count - 1) * parts.rows_per_part < rows);
      CHECK(parts.count <= 512);
    }
}

}  // namespace
}  // namespace troupe::train::tests

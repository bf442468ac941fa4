// Cross entropy and the gradients of embeddings, block by block, against the CPU's operators.

#include <algorithm>
#include <limits>

#include "tests/train/cuda/kernels/host_blocks.h"
#include "train/cuda/kernels/cross_entropy.h"
#include "train/cuda/kernels/embedding_backward.h"
#include "train/tensor/convert.h"

namespace troupe::train::tests {
namespace {

template <class Gradient, int N>
void run_cross_entropy(const cuda::CrossEntropy<Gradient>& a) {
  auto shared = std::make_unique<cuda::EntropyShared>();
  run_grid<cuda::EntropyBlock>(a.rows, 1, 1, [&](const auto& block) {
    cuda::cross_entropy_row<Gradient, N>(block, *shared, a);
  });
}

TEST_CASE("kernels' cross entropy is the CPU's") {
  // Fewer classes than threads, and more.
  const auto test = [](std::int64_t classes, auto packs) {
    constexpr int kN = decltype(packs)::value;
    CAPTURE(classes);
    constexpr std::int64_t kRows = 3;
    constexpr float kScale = 0.25f;
    auto logits = random_values(kRows * classes, 1, 9.0f);
    logits[5] = -std::numeric_limits<float>::infinity();
    const std::vector<std::int32_t> labels{0, static_cast<std::int32_t>(classes - 1), 7};
    auto expected = logits, found = logits;
    std::vector<float> losses(kRows), found_losses(kRows);
    CpuReference()->cross_entropy(expected.data(), labels.data(), losses.data(), kScale, true,
                                  kRows, classes);
    // No gradient, a rounded one, one in place.
    run_cross_entropy<float, kN>(
        {found.data(), labels.data(), found_losses.data(), kScale, nullptr, kRows, classes});
    check_close(found_losses, losses, 2e-6);
    CHECK(found == logits);
    std::vector<Bf16> rounded(found.size());
    run_cross_entropy<Bf16, kN>(
        {found.data(), labels.data(), found_losses.data(), kScale, rounded.data(), kRows, classes});
    check_close(widened(rounded), expected, 2e-3);
    run_cross_entropy<float, kN>(
        {found.data(), labels.data(), found_losses.data(), kScale, found.data(), kRows, classes});
    check_close(found_losses, losses, 2e-6);
    check_close(found, expected, 1e-6);
    // The gradient of a row adds up to nothing.
    double sum = 0;
    for (std::int64_t c = 0; c < classes; ++c) sum += found[static_cast<std::size_t>(c)];
    CHECK(std::abs(sum) < 1e-6);
  };
  test(40, std::integral_constant<int, kPack>{});
  test(9008, std::integral_constant<int, kPack>{});
  test(41, std::integral_constant<int, 1>{});
  test(1203, std::integral_constant<int, 1>{});
}

TEST_CASE("a NaN among the logits and a label that is none are NaNs of their rows alone") {
  std::vector<float> logits(4 * 16, 1.0f);
  logits[16 + 3] = std::nanf("");
  const std::vector<std::int32_t> labels{2, 2, -100, 15};
  std::vector<float> losses(4);
  run_cross_entropy<float, 1>({logits.data(), labels.data(), losses.data(), 1.0f, nullptr, 4, 16});
  CHECK(std::abs(losses[0] - std::log(16.0f)) < 1e-6);
  CHECK(std::isnan(losses[1]));
  CHECK(std::isnan(losses[2]));
  CHECK(std::abs(losses[3] - std::log(16.0f)) < 1e-6);
}

std::vector<std::uint64_t> sorted_by_kernels(const std::vector<std::int32_t>& ids) {
  const auto rows = static_cast<std::int64_t>(ids.size());
  std::vector<std::uint64_t> keys(static_cast<std::size_t>(cuda::sorted_keys(rows)));
  const auto count = static_cast<std::int64_t>(keys.size());
  auto shared = std::make_unique<cuda::SortShared>();
  cuda::for_sort_launches(
      rows,
      [&](std::int64_t tiles) {
        CHECK(tiles == count / cuda::kSortTile);
        run_grid<cuda::SortBlock>(tiles, 1, 1, [&](const auto& block) {
          cuda::sort_tile(block, *shared, ids.data(), rows, keys.data());
        });
      },
      [&](std::int64_t run, std::int64_t distance) {
        for (std::int64_t pair = 0; pair < count / 2; ++pair)
          cuda::sort_between_tiles(pair, run, distance, keys.data());
      },
      [&](std::int64_t run) {
        run_grid<cuda::SortBlock>(count / cuda::kSortTile, 1, 1, [&](const auto& block) {
          cuda::sort_within_tile(block, *shared, run, keys.data());
        });
      });
  return keys;
}

TEST_CASE("kernels sort ids with their positions, in one tile and in several") {
  for (const std::int64_t rows : {1, 7, 2048, 2049, 9000}) {
    CAPTURE(rows);
    SeededRandom random(static_cast<std::uint64_t>(rows));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(rows));
    for (auto& id : ids) id = static_cast<std::int32_t>(random.below(500));
    const auto keys = sorted_by_kernels(ids);
    CHECK(std::is_sorted(keys.begin(), keys.end()));
    std::vector<std::uint64_t> expected;
    for (std::int64_t i = 0; i < rows; ++i)
      expected.push_back(cuda::sort_key(ids[static_cast<std::size_t>(i)], i));
    std::sort(expected.begin(), expected.end());
    CHECK(std::equal(expected.begin(), expected.end(), keys.begin()));
  }
}

TEST_CASE("kernels add rows to their ids in order: the CPU's bits") {
  for_types_and_packs([]<class T, int N>(T, std::integral_constant<int, N>) {
    // One id of many rows, of exactly as many as are fetched at once, of one row, at the end.
    constexpr std::int64_t kRows = 60, kWidth = 24, kIds = 9;
    std::vector<std::int32_t> ids(kRows, 4);
    for (int i = 0; i < 4; ++i) ids[static_cast<std::size_t>(7 * i + 1)] = 2;
    ids[9] = 0;
    for (std::size_t i = 40; i < 49; ++i) ids[i] = 8;
    const auto dout = random_held<T>(kRows * kWidth, 1);
    const auto before = random_values(kIds * kWidth, 2);
    auto expected = before, found = before;
    CpuReference()->embedding_backward(ids.data(), dout.data(), expected.data(), kRows, kWidth);
    const auto keys = sorted_by_kernels(ids);
    const auto from = stored<T>(dout);
    const cuda::ScatterRows<T> a{keys.data(), from.data(), found.data(), kRows, kWidth};
    for (std::int64_t place = 0; place < kRows; ++place)
      for (std::int64_t column = 0; column < 128; column += N)
        cuda::scatter_rows<T, N>(a, place, column);
    CHECK(found == expected);
  });
}

}  // namespace
}  // namespace troupe::train::tests

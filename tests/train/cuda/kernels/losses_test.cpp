// Cross entropy of what is no number, and the sort of the embeddings' gradients, block by block.
// Values: launchers_test.

#include <algorithm>

#include "tests/train/cuda/kernels/host_blocks.h"
#include "train/cuda/kernels/cross_entropy.h"
#include "train/cuda/kernels/embedding_backward.h"

namespace troupe::train::tests {
namespace {

template <class Gradient, int N>
void run_cross_entropy(const cuda::CrossEntropy<Gradient>& a) {
  auto shared = std::make_unique<cuda::EntropyShared>();
  run_grid<cuda::EntropyBlock>(a.rows, 1, 1, [&](const auto& block) {
    cuda::cross_entropy_row<Gradient, N>(block, *shared, a);
  });
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

}  // namespace
}  // namespace troupe::train::tests

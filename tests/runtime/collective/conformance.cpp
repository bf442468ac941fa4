#include "tests/runtime/collective/conformance.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace troupe::collective::tests {
namespace {

// Values whose sum depends on the order of the additions.
float value_at(int rank, std::size_t i) {
  const auto mixed =
      static_cast<std::uint32_t>(i * 2654435761u + static_cast<std::uint32_t>(rank) * 40503u);
  return std::ldexp(static_cast<float>(mixed % 100003) - 50001.0f,
                    static_cast<int>(mixed >> 28) - 8);
}

// The documented tree, written down a second time: indices congruent to r modulo d below n.
float tree_sum(int r, int d, int n, std::size_t i) {
  if (r + d >= n) return value_at(r, i);
  return tree_sum(r, 2 * d, n, i) + tree_sum(r + d, 2 * d, n, i);
}

std::vector<float> input_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_at(rank, i);
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::size_t wrong_all_reduce(Communicator& c, std::size_t count, const std::vector<float>& want) {
  auto data = input_of(c.rank(), count);
  return !c.all_reduce(std::span(data)).ok() || !same_bits(data, want);
}

// Uneven shards, the last rank's empty where there are several.
std::vector<std::size_t> uneven_counts(int world_size, std::size_t count) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(world_size));
  std::size_t left = count;
  for (std::size_t r = 0; r + 2 < counts.size(); ++r) left -= counts[r] = left / 3;
  counts[counts.size() > 1 ? counts.size() - 2 : 0] = left;
  return counts;
}

std::size_t wrong_sharded(Communicator& c, std::size_t count, const std::vector<float>& want) {
  const auto counts = uneven_counts(c.world_size(), count);
  const auto r = static_cast<std::size_t>(c.rank());
  const auto input = input_of(c.rank(), count);
  std::vector<float> shard(counts[r]), all(count);
  if (!c.reduce_scatter(std::span<const float>(input), std::span(shard), counts).ok()) return 1;
  if (!c.all_gather(std::span<const float>(shard), std::span(all), counts).ok()) return 1;
  return !same_bits(all, want);
}

std::size_t wrong_broadcast(Communicator& c, std::size_t count) {
  std::size_t wrong = 0;
  for (int root = 0; root < c.world_size(); ++root) {
    auto data = input_of(c.rank(), count);
    wrong += !c.broadcast(std::span(data), root).ok() || !same_bits(data, input_of(root, count));
  }
  return wrong;
}

std::size_t wrong_types(Communicator& c) {
  const int n = c.world_size();
  std::size_t wrong = 0;
  std::vector<std::int64_t> whole(3001, c.rank() + 1);
  wrong += !c.all_reduce(std::span(whole)).ok() || whole[3000] != n * (n + 1) / 2;
  std::vector<double> largest{static_cast<double>(c.rank()), -1.0 - c.rank()};
  wrong += !c.all_reduce(std::span(largest), ReduceOp::kMax).ok() || largest[0] != n - 1 ||
           largest[1] != -1.0;
  std::vector<std::int32_t> least{c.rank(), -c.rank()};
  wrong +=
      !c.all_reduce(std::span(least), ReduceOp::kMin).ok() || least[0] != 0 || least[1] != 1 - n;
  std::vector<float> poisoned{c.rank() == n - 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f};
  wrong += !c.all_reduce(std::span(poisoned), ReduceOp::kMax).ok() || !std::isnan(poisoned[0]);
  // 1 + 2⁻⁸ a rank is lost to bfloat16 rounding unless the sum is taken in fp32.
  std::vector<Bfloat16> halves(5000, Bfloat16{0x3b80});  // 2⁻⁸
  if (c.rank() == 0) halves.assign(5000, Bfloat16{0x3f80});
  wrong += !c.all_reduce(std::span(halves)).ok();
  if (n == 3) wrong += halves[4999].bits != 0x3f81;  // 1 + 2·2⁻⁸ = 1 + 2⁻⁷
  return wrong;
}

}  // namespace

void check_conformance(const RunRanks& run_ranks, int world_size) {
  const std::vector<std::size_t> sizes{0, 1, 7, 1023, 1025, 40'001, 300'007};
  std::vector<std::vector<float>> wanted;
  for (const std::size_t size : sizes) {
    wanted.emplace_back(size);
    for (std::size_t i = 0; i < size; ++i) wanted.back()[i] = tree_sum(0, 1, world_size, i);
  }
  std::atomic<std::size_t> wrong{0};
  run_ranks(world_size, [&](Communicator& c) {
    for (std::size_t s = 0; s < sizes.size(); ++s) {
      wrong += wrong_all_reduce(c, sizes[s], wanted[s]);
      wrong += wrong_sharded(c, sizes[s], wanted[s]);
      wrong += wrong_broadcast(c, sizes[s]);
      wrong += !c.barrier().ok();
    }
    wrong += wrong_types(c);
  });
  CHECK(wrong == 0);
}

}  // namespace troupe::collective::tests

#include "tests/runtime/collective/conformance.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

namespace troupe::collective::tests {
namespace {

// Values whose sum depends on the order of the additions.
float value_at(int rank, std::size_t i) {
  const auto mixed =
      static_cast<std::uint32_t>(i * 2654435761u + static_cast<std::uint32_t>(rank) * 40503u);
  const float power = std::bit_cast<float>(((mixed >> 28) + 127 - 8) << 23);  // 2⁻⁸ to 2⁷
  return (static_cast<float>(mixed % 100003) - 50001.0f) * power;
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

Bfloat16 narrow(float value) {  // to nearest, ties to even
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
float widen(Bfloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
float tree_sum_bfloat16(int r, int d, int n, std::size_t i) {
  if (r + d >= n) return widen(narrow(value_at(r, i)));
  return tree_sum_bfloat16(r, 2 * d, n, i) + tree_sum_bfloat16(r + d, 2 * d, n, i);
}

// A unit of few tiles: most ranks own nothing of it, and who does differs from turn to turn.
std::vector<std::size_t> sparse_counts(int world_size, std::size_t count, int turn) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(world_size));
  counts[static_cast<std::size_t>(turn) % counts.size()] = count - count / 4;
  counts[static_cast<std::size_t>(turn + 2) % counts.size()] += count / 4;
  return counts;
}

// Shards inside the whole buffer, in both directions, as sharded training uses them.
template <typename T, typename Value, typename Want>
std::size_t wrong_in_place(Communicator& c, std::size_t count, Value value, Want want) {
  std::size_t wrong = 0;
  const auto r = static_cast<std::size_t>(c.rank());
  for (int turn = 0; turn < std::min(c.world_size(), 2); ++turn) {
    const auto counts = sparse_counts(c.world_size(), count, turn);
    const std::size_t begin = std::accumulate(counts.begin(), counts.begin() + c.rank(), 0ul);
    std::vector<T> data(count), wanted(count);
    for (std::size_t i = 0; i < count; ++i) data[i] = value(c.rank(), i), wanted[i] = want(i);
    const std::vector<T> before = data;
    const std::span<T> shard = std::span(data).subspan(begin, counts[r]);
    wrong += !c.reduce_scatter(std::span<const T>(data), shard, counts).ok();
    // Nothing but the shard has changed.
    const auto same = [&](const std::vector<T>& other, std::size_t at, std::size_t elements) {
      return elements == 0 ||
             std::memcmp(data.data() + at, other.data() + at, elements * sizeof(T)) == 0;
    };
    wrong += !same(before, 0, begin) || !same(wanted, begin, counts[r]) ||
             !same(before, begin + counts[r], count - begin - counts[r]);
    wrong += !c.all_gather(std::span<const T>(shard), std::span(data), counts).ok();
    wrong += !same(wanted, 0, count);
  }
  return wrong;
}

// What rank `from` has for rank `to` in an exchange.
float parcel(int from, int to, std::size_t i) { return value_at(from * 64 + to, i); }

std::size_t wrong_all_to_all(Communicator& c, const std::vector<std::size_t>& counts) {
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), 0ul);
  const std::size_t mine = counts[static_cast<std::size_t>(c.rank())];
  std::vector<float> input, output(static_cast<std::size_t>(c.world_size()) * mine, -1.0f), want;
  input.reserve(total);
  for (int r = 0; r < c.world_size(); ++r) {
    for (std::size_t i = 0; i < counts[static_cast<std::size_t>(r)]; ++i)
      input.push_back(parcel(c.rank(), r, i));
    for (std::size_t i = 0; i < mine; ++i) want.push_back(parcel(r, c.rank(), i));
  }
  return !c.all_to_all(std::span<const float>(input), std::span(output), counts).ok() ||
         !same_bits(output, want);
}

std::size_t wrong_gather(Communicator& c, const std::vector<std::size_t>& counts) {
  std::size_t wrong = 0;
  for (int root = 0; root < c.world_size(); ++root) {
    const auto mine = input_of(c.rank(), counts[static_cast<std::size_t>(c.rank())]);
    std::vector<float> output, want;
    if (c.rank() == root) {
      for (int r = 0; r < c.world_size(); ++r)
        for (std::size_t i = 0; i < counts[static_cast<std::size_t>(r)]; ++i)
          want.push_back(value_at(r, i));
      output.resize(want.size());
    }
    wrong += !c.gather(std::span<const float>(mine), std::span(output), counts, root).ok() ||
             !same_bits(output, want);
  }
  return wrong;
}

std::size_t wrong_exchanges(Communicator& c, std::size_t count) {
  std::size_t wrong = 0;
  const auto uneven = uneven_counts(c.world_size(), count);
  const auto sparse = sparse_counts(c.world_size(), count, 1);
  wrong += wrong_all_to_all(c, uneven) + wrong_all_to_all(c, sparse);
  return wrong + wrong_gather(c, count % 2 == 0 ? uneven : sparse);
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

std::size_t wrong_anything(Communicator& c, std::span<const std::size_t> sizes) {
  const int n = c.world_size();
  std::size_t wrong = 0;
  for (const std::size_t size : sizes) {
    std::vector<float> want(size);
    for (std::size_t i = 0; i < size; ++i) want[i] = tree_sum(0, 1, n, i);
    wrong += wrong_all_reduce(c, size, want);
    wrong += wrong_sharded(c, size, want);
    wrong += wrong_exchanges(c, size);
    wrong += wrong_broadcast(c, size);
    wrong += !c.barrier().ok();
  }
  for (const std::size_t size : {256ul, 40'001ul}) {
    wrong += wrong_in_place<float>(c, size, value_at,
                                   [&](std::size_t i) { return tree_sum(0, 1, n, i); });
    wrong += wrong_in_place<Bfloat16>(
        c, size, [](int rank, std::size_t i) { return narrow(value_at(rank, i)); },
        [&](std::size_t i) { return narrow(tree_sum_bfloat16(0, 1, n, i)); });
  }
  return wrong + wrong_types(c);
}

// The ranks whose number has this remainder, backwards: neither order nor numbers are the parent's.
std::vector<int> class_of(int world_size, int modulus, int remainder) {
  std::vector<int> ranks;
  for (int r = world_size - 1; r >= 0; --r)
    if (r % modulus == remainder) ranks.push_back(r);
  return ranks;
}

std::size_t wrong_subgroups(Communicator& c) {
  constexpr std::size_t kSizes[] = {7, 40'001}, kSmall[] = {1100};
  std::size_t wrong = 0;
  for (const int modulus : {1, 2, 3}) {
    const auto ranks = class_of(c.world_size(), modulus, c.rank() % modulus);
    auto group = c.subgroup(ranks, "classes");
    if (!group.ok()) return 1;
    Communicator& g = **group;
    const auto place = std::find(ranks.begin(), ranks.end(), c.rank()) - ranks.begin();
    wrong += g.rank() != place || std::cmp_not_equal(g.world_size(), ranks.size());
    wrong += g.generation() != c.generation();
    wrong += wrong_anything(g, kSizes);
    // A group of a group counts by the ranks of its parent.
    auto pair = g.subgroup(class_of(g.world_size(), 2, g.rank() % 2), "inner");
    if (!pair.ok()) return 1;
    wrong += wrong_anything(**pair, kSmall);
    wrong += !c.barrier().ok();
  }
  return wrong;
}

}  // namespace

void check_conformance(const RunRanks& run_ranks, int world_size) {
  constexpr std::size_t kSizes[] = {0, 1, 7, 1023, 1025, 40'001, 300'007};
  std::atomic<std::size_t> wrong{0};
  run_ranks(world_size, [&](Communicator& c) {
    wrong += wrong_anything(c, kSizes);
    wrong += wrong_subgroups(c);
  });
  CHECK(wrong == 0);
}

}  // namespace troupe::collective::tests

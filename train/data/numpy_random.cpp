#include "train/data/numpy_random.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

namespace troupe::train {
namespace {

__extension__ using Uint128 = unsigned __int128;

// NumPy's SeedSequence: four 64-bit words from a seed.
std::array<std::uint64_t, 4> seed_words(std::uint64_t seed) {
  constexpr std::size_t kPool = 4;
  std::uint32_t constant = 0x43b0d7e5;
  const auto hash = [&constant](std::uint32_t value) {
    value ^= constant;
    constant *= 0x931e8875;
    value *= constant;
    return value ^ (value >> 16);
  };
  const std::array<std::uint32_t, kPool> entropy = {static_cast<std::uint32_t>(seed),
                                                    static_cast<std::uint32_t>(seed >> 32), 0, 0};
  std::array<std::uint32_t, kPool> pool{};
  for (std::size_t i = 0; i < kPool; ++i) pool[i] = hash(entropy[i]);
  for (std::size_t from = 0; from < kPool; ++from) {
    for (std::size_t to = 0; to < kPool; ++to) {
      if (from == to) continue;
      const std::uint32_t mixed = 0xca01f9ddu * pool[to] - 0x4973f715u * hash(pool[from]);
      pool[to] = mixed ^ (mixed >> 16);
    }
  }
  std::array<std::uint32_t, 2 * kPool> words{};
  constant = 0x8b51f9dd;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::uint32_t value = pool[i % kPool] ^ constant;
    constant *= 0x58f38ded;
    value *= constant;
    words[i] = value ^ (value >> 16);
  }
  std::array<std::uint64_t, 4> out{};
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = words[2 * i] | static_cast<std::uint64_t>(words[2 * i + 1]) << 32;
  return out;
}

Uint128 join(std::uint64_t high, std::uint64_t low) {
  return static_cast<Uint128>(high) << 64 | low;
}

const Uint128 kMultiplier = join(0x2360ed051fc65da4, 0x4385df649fccf645);

// Draws until one is not above `most`, of the low bits that it takes.
template <typename Next>
std::uint32_t masked(std::uint32_t most, const Next& next) {
  if (most == 0) return 0;
  const std::uint32_t mask = ~std::uint32_t{0} >> std::countl_zero(most);
  std::uint32_t value = next() & mask;
  while (value > most) value = next() & mask;
  return value;
}

template <typename Bounded>
void permute_by(std::span<std::uint32_t> order, const Bounded& bounded) {
  std::iota(order.begin(), order.end(), 0u);
  for (auto i = static_cast<std::uint32_t>(order.size()); i-- > 1;)
    std::swap(order[i], order[bounded(i)]);
}

}  // namespace

NumpyGenerator::NumpyGenerator(std::uint64_t seed) {
  const auto words = seed_words(seed);
  increment_ = (join(words[2], words[3]) << 1) | 1;
  state_ = (increment_ + join(words[0], words[1])) * kMultiplier + increment_;
}

std::uint64_t NumpyGenerator::next64() {
  state_ = state_ * kMultiplier + increment_;
  const auto folded = static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
  return std::rotr(folded, static_cast<int>(state_ >> 122));
}

std::uint32_t NumpyGenerator::next32() {
  if (half_) return *std::exchange(half_, std::nullopt);
  const std::uint64_t word = next64();
  half_ = static_cast<std::uint32_t>(word >> 32);
  return static_cast<std::uint32_t>(word);
}

std::uint32_t NumpyGenerator::bounded(std::uint32_t most) {
  return masked(most, [this] { return next32(); });
}

std::uint32_t NumpyGenerator::integer(std::uint32_t most) {
  const std::uint32_t count = most + 1;
  if (most == 0) return 0;
  if (count == 0) return next32();
  std::uint64_t product = std::uint64_t{next32()} * count;
  const std::uint32_t threshold = (~std::uint32_t{0} - most) % count;
  while (static_cast<std::uint32_t>(product) < threshold) product = std::uint64_t{next32()} * count;
  return static_cast<std::uint32_t>(product >> 32);
}

double NumpyGenerator::uniform() { return static_cast<double>(next64() >> 11) * 0x1p-53; }

void numpy_permute(std::span<std::uint32_t> order, std::uint64_t seed) {
  NumpyGenerator generator(seed);
  permute_by(order, [&](std::uint32_t most) { return generator.bounded(most); });
}

std::vector<std::uint32_t> numpy_permutation(std::uint32_t count, std::uint64_t seed) {
  std::vector<std::uint32_t> order(count);
  numpy_permute(order, seed);
  return order;
}

NumpyChoice::NumpyChoice(std::uint64_t seed, std::span<const double> shares)
    : generator_(seed), sums_(shares.begin(), shares.end()) {
  std::partial_sum(sums_.begin(), sums_.end(), sums_.begin());
  for (double& sum : sums_) sum /= sums_.back();
}

std::size_t NumpyChoice::next() {
  const auto at = std::upper_bound(sums_.begin(), sums_.end(), generator_.uniform());
  return static_cast<std::size_t>(std::min(at, sums_.end() - 1) - sums_.begin());
}

std::uint32_t NumpyGlobal::bounded(std::uint32_t most) {
  return masked(most, [this] { return static_cast<std::uint32_t>(generator_()); });
}

void NumpyGlobal::permute(std::span<std::uint32_t> order) {
  permute_by(order, [this](std::uint32_t most) { return bounded(most); });
}

}  // namespace troupe::train

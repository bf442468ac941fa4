#include "train/data/numpy_random.h"

#include <array>
#include <bit>
#include <numeric>
#include <optional>
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

// PCG XSL RR 128/64.
class Pcg64 {
 public:
  explicit Pcg64(std::uint64_t seed) {
    const auto words = seed_words(seed);
    increment_ = (join(words[2], words[3]) << 1) | 1;
    step();
    state_ += join(words[0], words[1]);
    step();
  }

  // In [0, most]: the low bits of halves of the generator's words, until one is not above.
  std::uint32_t bounded(std::uint32_t most) {
    const std::uint32_t mask = most == 0 ? 0 : ~std::uint32_t{0} >> std::countl_zero(most);
    std::uint32_t value = next32() & mask;
    while (value > most) value = next32() & mask;
    return value;
  }

 private:
  static Uint128 join(std::uint64_t high, std::uint64_t low) {
    return static_cast<Uint128>(high) << 64 | low;
  }
  void step() { state_ = state_ * join(0x2360ed051fc65da4, 0x4385df649fccf645) + increment_; }
  std::uint64_t next64() {
    step();
    const auto folded =
        static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
    return std::rotr(folded, static_cast<int>(state_ >> 122));
  }
  std::uint32_t next32() {
    if (half_) return *std::exchange(half_, std::nullopt);
    const std::uint64_t word = next64();
    half_ = static_cast<std::uint32_t>(word >> 32);
    return static_cast<std::uint32_t>(word);
  }

  Uint128 state_ = 0;
  Uint128 increment_ = 0;
  std::optional<std::uint32_t> half_;
};

}  // namespace

std::vector<std::uint32_t> numpy_permutation(std::uint32_t count, std::uint64_t seed) {
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  Pcg64 generator(seed);
  for (std::uint32_t i = count; i-- > 1;) std::swap(order[i], order[generator.bounded(i)]);
  return order;
}

}  // namespace troupe::train

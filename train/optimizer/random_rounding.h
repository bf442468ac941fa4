#pragma once
// Stochastic rounding to bf16: up or down with the probabilities that make the expected value the
// number itself.
//
// A bf16 number has 8 bits of fraction: an update below half a step of it, a 512th to a 256th of
// the parameter, is lost every time it is rounded to nearest, and a fine-tuning's updates are
// smaller than that. Rounded randomly they arrive on average (Zamirai et al., "Revisiting BFloat16
// Training", 2020).
//
// The random bits are a function of a key and of the element's flat position alone: Philox4x32-7
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), of which two neighbours
// share a counter. So neither shards nor the number of ranks nor another process that finishes an
// update change a bit; train/cuda/kernels/arithmetic.h has the same for GPUs. On a core with
// AVX-512 an update takes about 2 ns an element more than one that rounds to nearest (0.9 ns).

#include <bit>
#include <cstdint>
#include <cstring>

#include "train/tensor/vectorize.h"

namespace troupe::train {

// The key of one step's update: (seed of the run, step), mixed.
std::uint64_t rounding_key(std::uint64_t seed, std::int64_t step);

// `random16` < 2¹⁶. What bf16 holds stays, and infinities; a NaN stays one.
TROUPE_INLINE std::uint16_t random_bf16(float value, std::uint32_t random16) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Selections, not branches: loops over it vectorise.
  const std::uint32_t quiet = magnitude > 0x7f800000u ? bits | 0x400000u : bits;
  return static_cast<std::uint16_t>((magnitude >= 0x7f800000u ? quiet : bits + random16) >> 16);
}

// Words of flat positions [first, first + kElements), first even: the low half of `low[i]` is the
// parameter's bits, its high half the first moment's, the low half of `high[i]` the second one's.
struct RoundingWords {
  static constexpr std::int64_t kElements = 256;
  alignas(64) std::uint32_t low[kElements];
  alignas(64) std::uint32_t high[kElements];
};

// Inlined into loops that are compiled for several instruction sets. Words of 32 bits in lanes of
// 64: their products need no permutation then.
TROUPE_INLINE void fill_rounding_words(std::uint64_t key, std::int64_t first,
                                       RoundingWords& words) {
  constexpr std::int64_t kPairs = RoundingWords::kElements / 2;
  constexpr std::uint64_t kWord = 0xffffffffu;
  const auto counter = static_cast<std::uint64_t>(first) >> 1;
  for (std::int64_t pair = 0; pair < kPairs; ++pair) {
    const std::uint64_t at = counter + static_cast<std::uint64_t>(pair);
    std::uint64_t c0 = at & kWord, c1 = at >> 32, c2 = 0, c3 = 0;
    std::uint64_t k0 = key & kWord, k1 = key >> 32;
    for (int round = 0; round < 7; ++round) {
      const std::uint64_t a = 0xD2511F53u * c0, b = 0xCD9E8D57u * c2;
      c0 = (b >> 32) ^ c1 ^ k0, c1 = b & kWord;
      c2 = (a >> 32) ^ c3 ^ k1, c3 = a & kWord;
      k0 = (k0 + 0x9E3779B9u) & kWord, k1 = (k1 + 0xBB67AE85u) & kWord;
    }
    // The even element's word lies first.
    const std::uint64_t low = c0 | c2 << 32, high = c1 | c3 << 32;
    std::memcpy(words.low + 2 * pair, &low, sizeof low);
    std::memcpy(words.high + 2 * pair, &high, sizeof high);
  }
}

}  // namespace troupe::train

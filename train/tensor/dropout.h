#pragma once
// Which elements a dropout leaves out: counted, not drawn.
//
// A mask is a function of the run's seed, the epoch, the sample, the token's place in its sample,
// the place in the model and the column, and of nothing else. So nobody keeps it: whoever needs it
// computes it, and it is the same when a block or a step is computed again, on every device, and
// however samples are dealt out to ranks, micro-batches and rows. Functions of C++ and CUDA alike.

#include <cstdint>

// Inlined wherever loops over lanes call them, so that the loops vectorise.
#if defined(__CUDACC__)
#define TROUPE_MASK_FUNCTION __host__ __device__ __forceinline__
#else
#define TROUPE_MASK_FUNCTION inline __attribute__((always_inline))
#endif

namespace troupe::train {

struct PhiloxWords {
  std::uint32_t word[4];
};

TROUPE_MASK_FUNCTION void philox_round(std::uint32_t& c0, std::uint32_t& c1, std::uint32_t& c2,
                                       std::uint32_t& c3, std::uint32_t k0, std::uint32_t k1) {
  constexpr std::uint32_t kFirst = 0xD2511F53u, kSecond = 0xCD9E8D57u;
  const auto high0 = static_cast<std::uint32_t>(static_cast<std::uint64_t>(kFirst) * c0 >> 32);
  const auto high1 = static_cast<std::uint32_t>(static_cast<std::uint64_t>(kSecond) * c2 >> 32);
  const std::uint32_t low0 = kFirst * c0, low1 = kSecond * c2;
  c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
}

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), what
// PyTorch and JAX's rbg draw from, too. Its rounds one by one: a loop in a loop does not vectorise.
TROUPE_MASK_FUNCTION PhiloxWords philox4x32_10(std::uint32_t k0, std::uint32_t k1, std::uint32_t c0,
                                               std::uint32_t c1, std::uint32_t c2,
                                               std::uint32_t c3) {
  constexpr std::uint32_t kStep0 = 0x9E3779B9u, kStep1 = 0xBB67AE85u;
  philox_round(c0, c1, c2, c3, k0, k1);
  philox_round(c0, c1, c2, c3, k0 + kStep0, k1 + kStep1);
  philox_round(c0, c1, c2, c3, k0 + 2 * kStep0, k1 + 2 * kStep1);
  philox_round(c0, c1, c2, c3, k0 + 3 * kStep0, k1 + 3 * kStep1);
  philox_round(c0, c1, c2, c3, k0 + 4 * kStep0, k1 + 4 * kStep1);
  philox_round(c0, c1, c2, c3, k0 + 5 * kStep0, k1 + 5 * kStep1);
  philox_round(c0, c1, c2, c3, k0 + 6 * kStep0, k1 + 6 * kStep1);
  philox_round(c0, c1, c2, c3, k0 + 7 * kStep0, k1 + 7 * kStep1);
  philox_round(c0, c1, c2, c3, k0 + 8 * kStep0, k1 + 8 * kStep1);
  philox_round(c0, c1, c2, c3, k0 + 9 * kStep0, k1 + 9 * kStep1);
  return {{c0, c1, c2, c3}};
}

// Columns whose bits are those of one counter, 16 each.
inline constexpr int kDropoutColumns = 8;

// A dropout at one place of a model. An element that stays is multiplied with `scale`, another
// becomes 0; so the expected value is the element.
struct Dropout {
  // An element is left out where its 16 bits are below: a probability in steps of 1/65536. 0: there
  // is no dropout, and nothing below is read.
  std::uint32_t threshold = 0;
  float scale = 1.0f;       // 65536 / (65536 − threshold)
  std::uint32_t seed = 0;   // of the run
  std::uint32_t epoch = 0;  // of the data
  std::uint32_t site = 0;   // dropout_site()
  // Of each row (token), in memory of the device: its sample and its place there. Tokens of a
  // sample stand side by side, in order.
  const std::int32_t* samples = nullptr;
  const std::int32_t* tokens = nullptr;

  explicit operator bool() const { return threshold != 0; }
};

// Places of a layer that drop out something.
enum class DropoutPlace : std::uint32_t {
  kEmbedding = 0,  // place 0 of layer 0; 1 and up in each layer: inputs of adapters
  kAttention = 1,  // weights of keys after the softmax; a place for each query head
  kAttentionOutput = 2,
  kMlpOutput = 3,
};

// Layers below 2¹², heads below 2¹⁶.
TROUPE_MASK_FUNCTION std::uint32_t dropout_site(DropoutPlace place, std::uint32_t layer,
                                                std::uint32_t head = 0) {
  return layer << 18 | static_cast<std::uint32_t>(place) << 16 | head;
}

// Of columns [kDropoutColumns·group, …) of a token. Attention's columns are keys, by their place in
// the sample.
TROUPE_MASK_FUNCTION PhiloxWords dropout_words(std::uint32_t seed, std::uint32_t epoch,
                                               std::uint32_t site, std::uint32_t sample,
                                               std::uint32_t token, std::uint32_t group) {
  return philox4x32_10(seed, epoch, group, token, sample, site);
}

// The bits of a column among its group's: in the order in which memory holds them.
TROUPE_MASK_FUNCTION std::uint32_t dropout_bits(const PhiloxWords& words, std::uint32_t column) {
  return words.word[column / 2 % 4] >> column % 2 * 16 & 0xffffu;
}

// Bit i: whether column i of the group stays.
TROUPE_MASK_FUNCTION std::uint32_t dropout_kept(const PhiloxWords& words, std::uint32_t threshold) {
  std::uint32_t kept = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (std::uint32_t i = 0; i < kDropoutColumns; ++i)
    kept |= (dropout_bits(words, i) >= threshold ? 1u : 0u) << i;
  return kept;
}

// Of a probability in [0, 1): threshold and scale. What is less than half a step is no dropout.
inline Dropout dropout_of(double probability) {
  Dropout dropout;
  const auto steps = static_cast<std::uint32_t>(probability * 65536.0 + 0.5);
  dropout.threshold = steps < 65535u ? steps : 65535u;
  dropout.scale = static_cast<float>(65536.0 / (65536.0 - dropout.threshold));
  return dropout;
}

}  // namespace troupe::train

// Masks sixteen counters at a time.

#include <cstring>

#include "train/cpu/kernels.h"
#include "train/cpu/vectors.h"
#include "train/tensor/vectorize.h"

namespace troupe::train::kernels {
namespace {

constexpr std::int64_t kBlockColumns = kLanes * kDropoutColumns;

TROUPE_INLINE float kept_or_zero(float x, std::uint32_t bits, std::uint32_t threshold,
                                 float scale) {
  return bits >= threshold ? x * scale : 0.0f;
}

using Integers8 = VectorOf<8>::Mask;
using Words4 __attribute__((vector_size(4 * sizeof(std::uint32_t)))) = std::uint32_t;
using Words8 __attribute__((vector_size(8 * sizeof(std::uint16_t)))) = std::uint16_t;

// The same for eight elements, whose bits are compared as signed numbers below 65536. (As a
// selection in a loop GCC 12 makes branches of it.)
TROUPE_INLINE void keep_or_zero(Floats8& x, const Integers8& bits, std::int32_t threshold,
                                float scale) {
  const Floats8 scaled = x * scale;
  Integers8 kept;
  std::memcpy(&kept, &scaled, sizeof kept);
  kept &= bits >= threshold;
  std::memcpy(&x, &kept, sizeof x);
}

// Bits of columns [kDropoutColumns·group, …), kBlockColumns of them.
TROUPE_INLINE void draw(const DropoutRow& row, std::uint32_t group, std::uint16_t* bits) {
  std::uint32_t words[4][kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const PhiloxWords w = dropout_words(row.seed, row.epoch, row.site, row.sample, row.token,
                                        group + static_cast<std::uint32_t>(lane));
    words[0][lane] = w.word[0], words[1][lane] = w.word[1];
    words[2][lane] = w.word[2], words[3][lane] = w.word[3];
  }
  // Four counters' words, word by word, become the words of each. Of 32 bits the low half comes
  // first.
  for (int lane = 0; lane < kLanes; lane += 4) {
    Words4 a, b, c, d;
    load_vector(words[0] + lane, a);
    load_vector(words[1] + lane, b);
    load_vector(words[2] + lane, c);
    load_vector(words[3] + lane, d);
    const Words4 first_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const Words4 first_high = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const Words4 last_low = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const Words4 last_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    std::uint16_t* to = bits + lane * kDropoutColumns;
    store_vector(__builtin_shufflevector(first_low, first_high, 0, 1, 4, 5), to);
    store_vector(__builtin_shufflevector(first_low, first_high, 2, 3, 6, 7), to + 8);
    store_vector(__builtin_shufflevector(last_low, last_high, 0, 1, 4, 5), to + 16);
    store_vector(__builtin_shufflevector(last_low, last_high, 2, 3, 6, 7), to + 24);
  }
}

template <bool kAdds>
TROUPE_INLINE void drop_row(const float* x, const float* residual, float* out, std::int64_t count,
                            std::int64_t first, const DropoutRow& row) {
  const std::int64_t lead = first & (kDropoutColumns - 1);
  auto group = static_cast<std::uint32_t>((first - lead) / kDropoutColumns);
  std::uint16_t bits[kBlockColumns];
  for (std::int64_t begin = -lead; begin < count; begin += kBlockColumns, group += kLanes) {
    draw(row, group, bits);
    const std::int64_t end = begin + kBlockColumns < count ? begin + kBlockColumns : count;
    std::int64_t i = begin < 0 ? 0 : begin;
    for (; i + 8 <= end; i += 8) {
      Words8 words;
      Floats8 kept, added;
      load_vector(bits + (i - begin), words);
      load_vector(x + i, kept);
      keep_or_zero(kept, __builtin_convertvector(words, Integers8),
                   static_cast<std::int32_t>(row.threshold), row.scale);
      if constexpr (kAdds) {
        load_vector(residual + i, added);
        kept = added + kept;
      }
      store_vector(kept, out + i);
    }
    for (; i < end; ++i) {
      const float kept = kept_or_zero(x[i], bits[i - begin], row.threshold, row.scale);
      out[i] = kAdds ? residual[i] + kept : kept;
    }
  }
}

}  // namespace

TROUPE_VECTORIZED
void dropout_row(const float* x, const float* residual, float* out, std::int64_t count,
                 std::int64_t first, const DropoutRow& row) {
  if (residual)
    drop_row<true>(x, residual, out, count, first, row);
  else
    drop_row<false>(x, nullptr, out, count, first, row);
}

TROUPE_VECTORIZED
void dropout_columns(float* scores, const DropoutQueries& queries, std::int64_t column,
                     std::int64_t begin, std::int64_t end) {
  std::uint32_t samples[kLanes], tokens[kLanes];
  std::int32_t starts[kLanes];
  std::int32_t differ = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    samples[lane] = queries.samples[column + lane], tokens[lane] = queries.tokens[column + lane];
    starts[lane] = queries.starts[column + lane];
    differ |= starts[lane] ^ queries.starts[column];
  }
  const std::uint32_t seed = queries.seed, epoch = queries.epoch, site = queries.site;
  const std::uint32_t threshold = queries.threshold;
  const float scale = queries.scale;
  std::uint32_t words[4][kLanes];
  if (differ == 0) {
    // Eight keys share what is drawn of their group.
    std::uint32_t drawn = 0;
    bool first = true;
    for (std::int64_t key = begin; key < end; ++key) {
      const auto place = static_cast<std::uint32_t>(key - starts[0]);
      if (first || place / kDropoutColumns != drawn) {
        first = false, drawn = place / kDropoutColumns;
        for (int lane = 0; lane < kLanes; ++lane) {
          const PhiloxWords w =
              dropout_words(seed, epoch, site, samples[lane], tokens[lane], drawn);
          words[0][lane] = w.word[0], words[1][lane] = w.word[1];
          words[2][lane] = w.word[2], words[3][lane] = w.word[3];
        }
      }
      const std::uint32_t* word = words[place / 2 % 4];
      const auto shift = static_cast<std::int32_t>(place % 2 * 16);
      float* x = scores + key * kQueryBlock + column;
      for (int half = 0; half < kLanes; half += kLanes / 2) {
        Integers8 bits;
        Floats8 kept;
        load_vector(word + half, bits);
        load_vector(x + half, kept);
        keep_or_zero(kept, bits >> shift & 0xffff, static_cast<std::int32_t>(threshold), scale);
        store_vector(kept, x + half);
      }
    }
    return;
  }
  // Queries of several samples, whose keys stand at different places of their groups.
  for (std::int64_t key = begin; key < end; ++key) {
    float* x = scores + key * kQueryBlock + column;
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto place = static_cast<std::uint32_t>(static_cast<std::int32_t>(key) - starts[lane]);
      const PhiloxWords w =
          dropout_words(seed, epoch, site, samples[lane], tokens[lane], place / kDropoutColumns);
      const std::uint32_t low = place & 2 ? w.word[1] : w.word[0];
      const std::uint32_t high = place & 2 ? w.word[3] : w.word[2];
      const std::uint32_t word = place & 4 ? high : low;
      x[lane] = kept_or_zero(x[lane], word >> place % 2 * 16 & 0xffffu, threshold, scale);
    }
  }
}

}  // namespace troupe::train::kernels

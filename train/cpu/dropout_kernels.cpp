// Masks sixteen counters at a time.

#include <cstring>

#include "train/cpu/kernels.h"
#include "train/tensor/vectorize.h"

namespace troupe::train::kernels {
namespace {

constexpr std::int64_t kBlockColumns = kLanes * kDropoutColumns;

TROUPE_INLINE float kept_or_zero(float x, std::uint32_t bits, std::uint32_t threshold,
                                 float scale) {
  return bits >= threshold ? x * scale : 0.0f;
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
  std::uint32_t together[4 * kLanes];
  for (int lane = 0; lane < kLanes; ++lane)
    for (int word = 0; word < 4; ++word) together[4 * lane + word] = words[word][lane];
  std::memcpy(bits, together, sizeof together);  // of 32 bits the low half first
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
    TROUPE_INDEPENDENT_LOOP
    for (std::int64_t i = begin < 0 ? 0 : begin; i < end; ++i) {
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
      const std::uint32_t shift = place % 2 * 16;
      float* x = scores + key * kQueryBlock + column;
      for (int lane = 0; lane < kLanes; ++lane)
        x[lane] = kept_or_zero(x[lane], word[lane] >> shift & 0xffffu, threshold, scale);
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

#pragma once
// What libraries that know no segments add to attention's scores: nothing where a query may see a
// key, a very low number before its first one.

#include <cstdint>

#include "train/cuda/kernels/arithmetic.h"

namespace troupe::train::cuda {

inline constexpr int kMaskPack = 8;
// About −1e30: far below any score, so that its exponential is 0, and far from infinity, so that
// the difference of two is a number.
inline constexpr std::uint16_t kMaskedBits = 0xf14a;

// Thread i makes kMaskPack elements. Rows: (batch, rows), of `stride` elements, a multiple of
// kMaskPack. Those behind the queries are as the last query's.
struct AttentionMask {
  const std::int32_t* first_key;  // (batch, queries)
  Bf16* mask;
  std::int64_t queries, rows, stride;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t packs = stride / kMaskPack;
    const std::int64_t row = i / packs, key = i % packs * kMaskPack;
    const std::int64_t query = row % rows < queries ? row % rows : queries - 1;
    const std::int64_t first = first_key[row / rows * queries + query];
    Bf16* to = mask + row * stride + key;
    TROUPE_UNROLL
    for (int k = 0; k < kMaskPack; ++k)
      to[k].bits = key + k < first ? kMaskedBits : std::uint16_t{0};
  }
};

}  // namespace troupe::train::cuda

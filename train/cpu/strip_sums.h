#pragma once
// Sums down a strip of columns, kept in registers: private to train/cpu.

#include <cstdint>

#include "train/tensor/vectorize.h"

namespace troupe::train::kernels {

// Columns a thread adds up down all rows; whole cache lines keep neighbours apart.
inline constexpr std::int64_t kColumnStrip = 64;

// Copies of at most kColumnStrip sums in memory: nothing that is read can alias them. Each grows
// row by row, so that the order of additions is that of a plain loop.
class StripSums {
 public:
  TROUPE_INLINE StripSums(const float* start, std::int64_t columns) {
    for (std::int64_t c = 0; c < columns; ++c) sums_[c] = start[c];
  }
  // sums[c] += value(c).
  template <typename F>
  TROUPE_INLINE void add(std::int64_t columns, F&& value) {
    if (columns == kColumnStrip)
      for (std::int64_t c = 0; c < kColumnStrip; ++c) sums_[c] += value(c);
    else
      for (std::int64_t c = 0; c < columns; ++c) sums_[c] += value(c);
  }
  TROUPE_INLINE void store(float* out, std::int64_t columns) const {
    for (std::int64_t c = 0; c < columns; ++c) out[c] = sums_[c];
  }

 private:
  float sums_[kColumnStrip] = {};
};

}  // namespace troupe::train::kernels

#pragma once
// Lines of a matrix that are wanted soon, fetched while something else is computed: private to
// train/cpu.
//
// They lie where hardware does not foresee them: without it, copies of operands wait for memory
// with nothing to multiply meanwhile, a tenth of a product whose operands are in no cache.

#include <cstdint>

#include "train/cpu/division.h"
#include "train/tensor/vectorize.h"

namespace troupe::train {

// Rows in memory, from line to line. They are fetched to the level-2 cache.
class LinesAhead {
 public:
  LinesAhead() = default;
  // rows of `width` elements, `stride` elements apart, each of `element_bytes`.
  LinesAhead(const void* begin, std::int64_t rows, std::int64_t width, std::int64_t stride,
             std::int64_t element_bytes)
      : row_(static_cast<const char*>(begin)),
        rows_(rows),
        width_bytes_(width * element_bytes),
        stride_bytes_(stride * element_bytes) {}

  // That are left, before anything is fetched.
  std::int64_t lines() const { return rows_ * ceil_div(width_bytes_, kLineBytes); }

  // The next line, if there is one.
  TROUPE_INLINE void fetch() {
    if (rows_ == 0) return;
    __builtin_prefetch(row_ + at_, 0, 2);
    at_ += kLineBytes;
    if (at_ < width_bytes_) return;
    at_ = 0, row_ += stride_bytes_, --rows_;
  }

 private:
  static constexpr std::int64_t kLineBytes = kLineElements * sizeof(float);
  const char* row_ = nullptr;
  std::int64_t rows_ = 0, width_bytes_ = 0, stride_bytes_ = 0, at_ = 0;
};

}  // namespace troupe::train

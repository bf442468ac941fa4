#pragma once
// What the table's size functions answer, for who plans without the library.

#include <cstdint>

#include "train/cuda/kernels/column_sums.h"
#include "train/cuda/kernels/embedding_backward.h"
#include "train/cuda/kernels/fp8.h"

namespace troupe::train::cuda {

inline std::int64_t row_sum_scratch_size(std::int64_t rows, std::int64_t width) {
  if (rows <= 0 || width <= 0) return 0;
  return row_parts(rows, width).count * width * static_cast<std::int64_t>(sizeof(float));
}

// rows: of the queries, all heads'.
inline std::int64_t attention_scratch_size(std::int64_t rows) {
  return rows * static_cast<std::int64_t>(sizeof(float));
}

inline std::int64_t embedding_scratch_size(std::int64_t rows) {
  return rows <= 0 ? 0 : sorted_keys(rows) * static_cast<std::int64_t>(sizeof(std::uint64_t));
}

inline std::int64_t quantize_scratch_size() {
  return kAmaxParts * static_cast<std::int64_t>(sizeof(std::uint32_t));
}

}  // namespace troupe::train::cuda

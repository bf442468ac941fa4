#pragma once
// What the table's size functions answer, for who plans without the library.

#include <cstdint>

#include "train/cuda/device/table.h"
#include "train/cuda/kernels/column_sums.h"
#include "train/cuda/kernels/embedding_backward.h"

namespace troupe::train::cuda {

inline std::int64_t row_sum_scratch_size(std::int64_t rows, std::int64_t width) {
  if (rows <= 0 || width <= 0) return 0;
  return row_parts(rows, width).count * width * static_cast<std::int64_t>(sizeof(float));
}

inline std::int64_t attention_scratch_size(const TroupeCudaAttention* shape) {
  return shape->batch * shape->query_heads * shape->query_length *
         static_cast<std::int64_t>(sizeof(float));
}

inline std::int64_t embedding_scratch_size(std::int64_t rows) {
  return rows <= 0 ? 0 : sorted_keys(rows) * static_cast<std::int64_t>(sizeof(std::uint64_t));
}

}  // namespace troupe::train::cuda

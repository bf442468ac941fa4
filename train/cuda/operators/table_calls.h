#pragma once
// What describes a call of the operators, as the table takes it.

#include <cstdint>

#include "train/cuda/device/table.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// type: TROUPE_CUDA_F32 or TROUPE_CUDA_BF16, of all its activations. Of the window and the dropout
// the table's struct has nothing.
inline TroupeCudaAttention table_attention(const AttentionShape& s, std::int32_t type) {
  return {.batch = s.batch,
          .query_length = s.query_length,
          .key_length = s.key_length,
          .query_heads = s.query_heads,
          .key_heads = s.key_heads,
          .head_dim = s.head_dim,
          .query_stride = s.query_stride,
          .key_stride = s.key_stride,
          .key_batch_stride = s.key_batch_stride,
          .scale = s.scale,
          .type = type,
          .first_key = s.first_key};
}

inline TroupeCudaDropout table_dropout(const Dropout& d) {
  return {.threshold = d.threshold,
          .scale = d.scale,
          .seed = d.seed,
          .epoch = d.epoch,
          .site = d.site,
          .samples = d.samples,
          .tokens = d.tokens};
}

}  // namespace troupe::train

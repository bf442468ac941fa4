// The mask that fused attention takes for segments.

#include "train/cuda/kernels/attention_mask.h"
#include "train/cuda/library/launch.cuh"

namespace troupe::train::cuda {
namespace {

int attention_mask(TroupeCudaStream* stream, const TroupeCudaAttention* shape, void* mask,
                   std::int64_t mask_rows, std::int64_t mask_stride) {
  constexpr const char* kWhat = "attention_mask";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "batch", shape->batch));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "query_length", shape->query_length));
  if (!shape->first_key || mask_rows < shape->query_length || mask_stride < shape->key_length ||
      mask_stride % kMaskPack != 0)
    return fail(
        TROUPE_CUDA_INVALID,
        "attention_mask: no first_key, or a mask that does not hold the queries and keys in "
        "packs of 8");
  const std::int64_t rows = shape->batch * mask_rows;
  for_each(stream,
           AttentionMask{shape->first_key, static_cast<Bf16*>(mask), shape->query_length, mask_rows,
                         mask_stride},
           rows * (mask_stride / kMaskPack));
  return launched(kWhat, rows, mask_stride);
}

}  // namespace

void fill_attention_mask(TroupeCudaTable& table) { table.attention_mask = attention_mask; }

}  // namespace troupe::train::cuda

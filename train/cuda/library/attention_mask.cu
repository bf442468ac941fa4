// The mask that fused attention takes for segments.

#include "train/cuda/kernels/attention_mask.h"
#include "train/cuda/library/launch.cuh"

namespace troupe::train::cuda {
namespace {

int attention_mask(TroupeCudaStream* stream, const TroupeCudaAttention* shape, void* mask,
                   std::int64_t mask_stride) {
  constexpr const char* kWhat = "attention_mask";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  const std::int64_t rows = shape->batch * shape->query_length;
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "batch times query_length", rows));
  if (!shape->first_key || mask_stride < shape->key_length || mask_stride % kMaskPack != 0)
    return fail(TROUPE_CUDA_INVALID,
                "attention_mask: no first_key, or rows that do not hold the keys in packs of 8");
  for_each(stream->stream,
           AttentionMask{shape->first_key, static_cast<Bf16*>(mask), mask_stride},
           rows * (mask_stride / kMaskPack));
  return launched(kWhat, rows, mask_stride);
}

}  // namespace

void fill_attention_mask(TroupeCudaTable& table) { table.attention_mask = attention_mask; }

}  // namespace troupe::train::cuda

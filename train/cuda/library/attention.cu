// Troupe's own attention.

#include "train/cuda/kernels/scratch_sizes.h"
#include "train/cuda/library/attention.cuh"

namespace troupe::train::cuda {
namespace {

int attention_forward(TroupeCudaStream* stream, const TroupeCudaAttention* shape, const void* q,
                      const void* k, const void* v, void* out, float* log_sum_exp) {
  return start_attention_forward(stream, "attention_forward", shape, q, k, v, out, log_sum_exp);
}

std::int64_t attention_scratch_bytes(const TroupeCudaAttention* s) {
  return attention_scratch_size(s->batch * s->query_heads * s->query_length);
}

int attention_backward(TroupeCudaStream* stream, const TroupeCudaAttention* shape, const void* q,
                       const void* k, const void* v, const void* out, const float* log_sum_exp,
                       const void* dout, void* dq, void* dk, void* dv, void* scratch) {
  return start_attention_backward(stream, "attention_backward", shape, q, k, v, out, log_sum_exp,
                                  dout, dq, dk, dv, scratch);
}

}  // namespace

void fill_attention(TroupeCudaTable& table) {
  table.attention_forward = attention_forward;
  table.attention_backward = attention_backward;
  table.attention_scratch_bytes = attention_scratch_bytes;
}

}  // namespace troupe::train::cuda

// Troupe's own attention, with a dropout of its weights.

#include "train/cuda/library/attention.cuh"

namespace troupe::train::cuda {
namespace {

int attention_dropout_forward(TroupeCudaStream* stream, const TroupeCudaAttention* shape,
                              const TroupeCudaDropout* dropout, const void* q, const void* k,
                              const void* v, void* out, float* log_sum_exp) {
  constexpr const char* kWhat = "attention_dropout_forward";
  TROUPE_CUDA_RETURN_IF_FAILED(need_dropout(kWhat, *dropout));
  return start_attention_forward(stream, kWhat, shape, q, k, v, out, log_sum_exp,
                                 dropout_of(*dropout));
}

int attention_dropout_backward(TroupeCudaStream* stream, const TroupeCudaAttention* shape,
                               const TroupeCudaDropout* dropout, const void* q, const void* k,
                               const void* v, const void* out, const float* log_sum_exp,
                               const void* dout, void* dq, void* dk, void* dv, void* scratch) {
  constexpr const char* kWhat = "attention_dropout_backward";
  TROUPE_CUDA_RETURN_IF_FAILED(need_dropout(kWhat, *dropout));
  return start_attention_backward(stream, kWhat, shape, q, k, v, out, log_sum_exp, dout, dq, dk, dv,
                                  scratch, dropout_of(*dropout));
}

}  // namespace

void fill_attention_dropout(TroupeCudaTable& table) {
  table.attention_dropout_forward = attention_dropout_forward;
  table.attention_dropout_backward = attention_dropout_backward;
}

}  // namespace troupe::train::cuda

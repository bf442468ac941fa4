#pragma once
// The table's operators on bf16 activations, behind the interface of fp32 ones: what a check of
// them needs. Activations are converted on the device before and after; values that bf16 holds stay
// as they are.

#include <cstdint>
#include <functional>

#include "tools/gpu_check/bench.h"
#include "train/tensor/operators.h"

namespace troupe::tools::gpu {

class Bf16Operators final : public train::Operators {
 public:
  // `gpu` must outlive the object, which takes memory of it.
  explicit Bf16Operators(Gpu& gpu) : gpu_(gpu) {}

  bool fast_bf16() const override { return true; }
  Status failure() const override;
  void upload(const void* host, void* device, std::size_t bytes) override;
  void download(const void* device, void* host, std::size_t bytes) override;
  void copy_rows(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride,
                 std::int64_t rows, std::int64_t width) override;
  // a, b and c in bf16.
  void gemm(const train::Gemm& gemm) override;
  void zero(float* x, std::int64_t count) override;
  void add(const float* a, const float* b, float* out, std::int64_t count) override;
  void rms_norm_forward(const float* x, const float* weight, float* y, float* rstd,
                        std::int64_t rows, std::int64_t width, float eps) override;
  void residual_rms_norm_forward(const float* x, const float* delta, const float* weight,
                                 float* sum, float* y, float* rstd, std::int64_t rows,
                                 std::int64_t width, float eps) override;
  void rms_norm_apply(const float* x, const float* weight, const float* rstd, float* y,
                      std::int64_t rows, std::int64_t width) override;
  void rms_norm_backward(const float* dy, const float* x, const float* weight, const float* rstd,
                         float* dx, float* dweight, std::int64_t rows, std::int64_t width) override;
  void layer_norm_forward(const float* x, const float* weight, const float* bias, float* y,
                          float* mean, float* rstd, std::int64_t rows, std::int64_t width,
                          float eps) override;
  void layer_norm_apply(const float* x, const float* weight, const float* bias, const float* mean,
                        const float* rstd, float* y, std::int64_t rows,
                        std::int64_t width) override;
  void layer_norm_backward(const float* dy, const float* x, const float* weight, const float* mean,
                           const float* rstd, float* dx, float* dweight, float* dbias,
                           std::int64_t rows, std::int64_t width) override;
  void head_norm_forward(const float* x, std::int64_t x_stride, const float* weight, float* y,
                         std::int64_t y_stride, float* rstd, std::int64_t rows, std::int64_t heads,
                         std::int64_t head_dim, float eps) override;
  void head_norm_backward(float* dy, std::int64_t stride, const float* x, std::int64_t x_stride,
                          const float* weight, const float* rstd, float* dweight, std::int64_t rows,
                          std::int64_t heads, std::int64_t head_dim) override;
  void add_bias(float* y, std::int64_t stride, const float* bias, std::int64_t rows,
                std::int64_t width) override;
  void bias_backward(const float* dy, std::int64_t stride, float* dbias, std::int64_t rows,
                     std::int64_t width) override;
  void rope(float* x, std::int64_t stride, const std::int32_t* positions, const float* cosine,
            const float* sine, std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
            train::RopeDirection direction) override;
  void attention_forward(const train::AttentionShape& shape, const float* q, const float* k,
                         const float* v, float* out, float* log_sum_exp) override;
  void attention_backward(const train::AttentionShape& shape, const float* q, const float* k,
                          const float* v, const float* out, const float* log_sum_exp,
                          const float* dout, float* dq, float* dk, float* dv) override;
  void swiglu_forward(const float* gate_up, float* act, std::int64_t rows,
                      std::int64_t width) override;
  void swiglu_backward(float* gate_up, const float* dact, float* act, std::int64_t rows,
                       std::int64_t width) override;
  void gelu_forward(const float* x, float* act, std::int64_t count) override;
  void gelu_backward(float* x, const float* dact, float* act, std::int64_t count) override;
  void embedding_forward(const std::int32_t* ids, const void* table, train::DType table_type,
                         float* out, std::int64_t rows, std::int64_t width) override;
  void embedding_backward(const std::int32_t* ids, const float* dout, float* dweight,
                          std::int64_t rows, std::int64_t width) override;
  void cross_entropy(float* logits, const std::int32_t* labels, float* losses, float scale,
                     bool gradient, std::int64_t rows, std::int64_t classes) override;
  void cross_entropy_bf16(float* logits, const std::int32_t* labels, float* losses, float scale,
                          std::uint16_t* gradient, std::int64_t rows,
                          std::int64_t classes) override;

 private:
  TroupeCudaStream* stream() const { return gpu_.stream->get(); }
  const TroupeCudaTable& table() const { return gpu_.table(); }
  void run(const char* name, const std::function<int()>& launch);
  std::byte* take(std::int64_t bytes);
  // A copy in bf16.
  void* in(const float* from, std::int64_t count);
  void* room(std::int64_t count) { return take(count * 2); }
  // Back to fp32.
  void out(const void* from, float* to, std::int64_t count);
  // Back, but for what lies between rows of `width`.
  void out_rows(const void* from, float* to, std::int64_t stride, std::int64_t rows,
                std::int64_t width);

  Gpu& gpu_;
  Status failure_;
};

}  // namespace troupe::tools::gpu

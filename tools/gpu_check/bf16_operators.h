#pragma once
// The device's operators on bf16 activations, for callers with fp32 ones: what a check of them
// needs. Activations are converted on the device before and after; values that bf16 holds stay as
// they are. Attention goes to the table's own kernels.

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
  // It converts what it is given.
  bool stores_bf16() const override { return false; }
  Status failure() const override;
  void upload(const void* host, void* device, std::size_t bytes) override;
  void download(const void* device, void* host, std::size_t bytes) override;
  void copy_rows(train::ConstElements from, std::int64_t from_stride, train::Elements to,
                 std::int64_t to_stride, std::int64_t rows, std::int64_t width) override;
  // a, b and c in bf16.
  void gemm(const train::Gemm& gemm) override;
  void zero(train::Elements x, std::int64_t count) override;
  void add(train::ConstElements a, train::ConstElements b, train::Elements out,
           std::int64_t count) override;
  void dropout(const train::Dropout& dropout, train::ConstElements x, train::ConstElements residual,
               train::Elements out, std::int64_t rows, std::int64_t width) override;
  void rms_norm_forward(train::ConstElements x, const float* weight, train::Elements y, float* rstd,
                        std::int64_t rows, std::int64_t width, float eps) override;
  void residual_rms_norm_forward(train::ConstElements x, train::ConstElements delta,
                                 const float* weight, train::Elements sum, train::Elements y,
                                 float* rstd, std::int64_t rows, std::int64_t width,
                                 float eps) override;
  void rms_norm_apply(train::ConstElements x, const float* weight, const float* rstd,
                      train::Elements y, std::int64_t rows, std::int64_t width) override;
  void rms_norm_backward(train::ConstElements dy, train::ConstElements x, const float* weight,
                         const float* rstd, train::Elements dx, float* dweight, std::int64_t rows,
                         std::int64_t width) override;
  void layer_norm_forward(train::ConstElements x, const float* weight, const float* bias,
                          train::Elements y, float* mean, float* rstd, std::int64_t rows,
                          std::int64_t width, float eps) override;
  void layer_norm_apply(train::ConstElements x, const float* weight, const float* bias,
                        const float* mean, const float* rstd, train::Elements y, std::int64_t rows,
                        std::int64_t width) override;
  void layer_norm_backward(train::ConstElements dy, train::ConstElements x, const float* weight,
                           const float* mean, const float* rstd, train::Elements dx, float* dweight,
                           float* dbias, std::int64_t rows, std::int64_t width) override;
  void head_norm_forward(train::ConstElements x, std::int64_t x_stride, const float* weight,
                         train::Elements y, std::int64_t y_stride, float* rstd, std::int64_t rows,
                         std::int64_t heads, std::int64_t head_dim, float eps) override;
  void head_norm_backward(train::Elements dy, std::int64_t stride, train::ConstElements x,
                          std::int64_t x_stride, const float* weight, const float* rstd,
                          float* dweight, std::int64_t rows, std::int64_t heads,
                          std::int64_t head_dim) override;
  void add_bias(train::Elements y, std::int64_t stride, const float* bias, std::int64_t rows,
                std::int64_t width) override;
  void bias_backward(train::ConstElements dy, std::int64_t stride, float* dbias, std::int64_t rows,
                     std::int64_t width) override;
  void rope(train::Elements x, std::int64_t stride, const std::int32_t* positions,
            const float* cosine, const float* sine, std::int64_t rows, std::int64_t heads,
            std::int64_t head_dim, train::RopeDirection direction) override;
  void attention_forward(const train::AttentionShape& shape, train::ConstElements q,
                         train::ConstElements k, train::ConstElements v, train::Elements out,
                         float* log_sum_exp) override;
  void attention_backward(const train::AttentionShape& shape, train::ConstElements q,
                          train::ConstElements k, train::ConstElements v, train::ConstElements out,
                          const float* log_sum_exp, train::ConstElements dout, train::Elements dq,
                          train::Elements dk, train::Elements dv) override;
  void swiglu_forward(train::ConstElements gate_up, train::Elements act, std::int64_t rows,
                      std::int64_t width) override;
  void swiglu_backward(train::Elements gate_up, train::ConstElements dact, train::Elements act,
                       std::int64_t rows, std::int64_t width) override;
  void gelu_forward(train::ConstElements x, train::Elements act, std::int64_t count) override;
  void gelu_backward(train::Elements x, train::ConstElements dact, train::Elements act,
                     std::int64_t count) override;
  void embedding_forward(const std::int32_t* ids, const void* table, train::DType table_type,
                         train::Elements out, std::int64_t rows, std::int64_t width) override;
  void embedding_backward(const std::int32_t* ids, train::ConstElements dout, float* dweight,
                          std::int64_t rows, std::int64_t width) override;
  void cross_entropy(float* logits, const std::int32_t* labels, float* losses, float scale,
                     bool gradient, std::int64_t rows, std::int64_t classes) override;
  void cross_entropy_bf16(float* logits, const std::int32_t* labels, float* losses, float scale,
                          std::uint16_t* gradient, std::int64_t rows,
                          std::int64_t classes) override;

 private:
  TroupeCudaStream* stream() const { return gpu_.stream->get(); }
  const TroupeCudaTable& table() const { return gpu_.table(); }
  // Unless something failed before.
  void run(const std::function<void(train::Operators&)>& call);
  void launch(const char* name, const std::function<int()>& call);
  std::byte* take(std::int64_t bytes);
  // A copy in bf16.
  train::Elements in(train::ConstElements from, std::int64_t count);
  train::Elements room(std::int64_t count) { return {take(count * 2), train::DType::kBF16}; }
  // Back to fp32.
  void out(train::ConstElements from, train::Elements to, std::int64_t count);
  // Back, but for what lies between rows of `width`.
  void out_rows(train::ConstElements from, train::Elements to, std::int64_t stride,
                std::int64_t rows, std::int64_t width);

  Gpu& gpu_;
  Status failure_;
};

}  // namespace troupe::tools::gpu

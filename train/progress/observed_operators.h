#pragma once
// An operator table that tells each operator before it runs.

#include <functional>
#include <string_view>
#include <utility>

#include "train/progress/progress_recorder.h"
#include "train/tensor/operators.h"

namespace troupe::train {

// Results are those of `inner`. Both outlive it; thread rules are those of the table.
class ObservedOperators final : public Operators {
 public:
  ObservedOperators(Operators& inner, ProgressRecorder& recorder)
      : inner_(inner), recorder_(recorder) {}
  // From now on `settle` runs before each operator is told: on a device that computes behind its
  // callers, so that an operator's time ends where its work does.
  void settle_by(std::function<void()> settle) { settle_ = std::move(settle); }

  bool fast_bf16() const override { return inner_.fast_bf16(); }
  bool stores_bf16() const override { return inner_.stores_bf16(); }
  Status failure() const override { return inner_.failure(); }
  void begin_block(int block) override { inner_.begin_block(block); }
  void end_block() override { inner_.end_block(); }
  void upload(const void* host, void* device, std::size_t bytes) override;
  void download(const void* device, void* host, std::size_t bytes) override;
  void copy_rows(ConstElements from, std::int64_t from_stride, Elements to, std::int64_t to_stride,
                 std::int64_t rows, std::int64_t width) override;
  void gemm(const Gemm& gemm) override;
  bool fuses(const Gemm& gemm) override { return inner_.fuses(gemm); }
  void zero(Elements x, std::int64_t count) override;
  void add(ConstElements a, ConstElements b, Elements out, std::int64_t count) override;
  void scale(float* x, std::int64_t stride, float factor, std::int64_t rows,
             std::int64_t width) override;
  void dropout(const Dropout& dropout, ConstElements x, ConstElements residual, Elements out,
               std::int64_t rows, std::int64_t width) override;
  void rms_norm_forward(ConstElements x, const float* weight, Elements y, float* rstd,
                        std::int64_t rows, std::int64_t width, float eps) override;
  void residual_rms_norm_forward(ConstElements x, ConstElements delta, const float* weight,
                                 Elements sum, Elements y, float* rstd, std::int64_t rows,
                                 std::int64_t width, float eps) override;
  void rms_norm_apply(ConstElements x, const float* weight, const float* rstd, Elements y,
                      std::int64_t rows, std::int64_t width) override;
  void rms_norm_backward(ConstElements dy, ConstElements x, const float* weight, const float* rstd,
                         Elements dx, float* dweight, std::int64_t rows,
                         std::int64_t width) override;
  void layer_norm_forward(ConstElements x, const float* weight, const float* bias, Elements y,
                          float* mean, float* rstd, std::int64_t rows, std::int64_t width,
                          float eps) override;
  void layer_norm_apply(ConstElements x, const float* weight, const float* bias, const float* mean,
                        const float* rstd, Elements y, std::int64_t rows,
                        std::int64_t width) override;
  void layer_norm_backward(ConstElements dy, ConstElements x, const float* weight,
                           const float* mean, const float* rstd, Elements dx, float* dweight,
                           float* dbias, std::int64_t rows, std::int64_t width) override;
  void head_norm_forward(ConstElements x, std::int64_t x_stride, const float* weight, Elements y,
                         std::int64_t y_stride, float* rstd, std::int64_t rows, std::int64_t heads,
                         std::int64_t head_dim, float eps) override;
  void head_norm_backward(Elements dy, std::int64_t stride, ConstElements x, std::int64_t x_stride,
                          const float* weight, const float* rstd, float* dweight, std::int64_t rows,
                          std::int64_t heads, std::int64_t head_dim) override;
  void add_bias(Elements y, std::int64_t stride, const float* bias, std::int64_t rows,
                std::int64_t width) override;
  void bias_backward(ConstElements dy, std::int64_t stride, float* dbias, std::int64_t rows,
                     std::int64_t width) override;
  void rope(Elements x, std::int64_t stride, const std::int32_t* positions, const float* cosine,
            const float* sine, std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
            RopeDirection direction) override;
  void attention_forward(const AttentionShape& shape, ConstElements q, ConstElements k,
                         ConstElements v, Elements out, float* log_sum_exp) override;
  void attention_backward(const AttentionShape& shape, ConstElements q, ConstElements k,
                          ConstElements v, ConstElements out, const float* log_sum_exp,
                          ConstElements dout, Elements dq, Elements dk, Elements dv) override;
  void swiglu_forward(ConstElements gate_up, Elements act, std::int64_t rows,
                      std::int64_t width) override;
  void swiglu_backward(Elements gate_up, ConstElements dact, Elements act, std::int64_t rows,
                       std::int64_t width) override;
  void gelu_forward(ConstElements x, Elements act, std::int64_t count) override;
  void gelu_backward(Elements x, ConstElements dact, Elements act, std::int64_t count) override;
  void embedding_forward(const std::int32_t* ids, const void* table, DType table_type, Elements out,
                         std::int64_t rows, std::int64_t width) override;
  void embedding_backward(const std::int32_t* ids, ConstElements dout, float* dweight,
                          std::int64_t rows, std::int64_t width) override;
  void cross_entropy(float* logits, const std::int32_t* labels, float* losses, float scale,
                     bool gradient, std::int64_t rows, std::int64_t classes) override;
  void cross_entropy_bf16(float* logits, const std::int32_t* labels, float* losses, float scale,
                          std::uint16_t* gradient, std::int64_t rows,
                          std::int64_t classes) override;

 private:
  void tell(std::string_view name, std::string_view variant = {}) {
    if (settle_) settle_();
    recorder_.operation(name, variant);
  }

  Operators& inner_;
  ProgressRecorder& recorder_;
  std::function<void()> settle_;
};

}  // namespace troupe::train

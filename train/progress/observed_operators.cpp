#include "train/progress/observed_operators.h"

namespace troupe::train {

void ObservedOperators::upload(const void* host, void* device, std::size_t bytes) {
  tell("upload");
  inner_.upload(host, device, bytes);
}

void ObservedOperators::download(const void* device, void* host, std::size_t bytes) {
  tell("download");
  inner_.download(device, host, bytes);
}

void ObservedOperators::copy_rows(ConstElements from, std::int64_t from_stride, Elements to,
                                  std::int64_t to_stride, std::int64_t rows, std::int64_t width) {
  tell("copy_rows");
  inner_.copy_rows(from, from_stride, to, to_stride, rows, width);
}

void ObservedOperators::gemm(const Gemm& gemm) {
  // In BLAS's words: with weights as [out, in], "nt" is a forward product, "nn" the gradient of
  // inputs, "tn" that of weights.
  static constexpr std::string_view kLayouts[] = {"nn", "nt", "tn", "tt"};
  tell("gemm", kLayouts[2 * gemm.transpose_a + gemm.transpose_b]);
  inner_.gemm(gemm);
}

void ObservedOperators::zero(Elements x, std::int64_t count) {
  tell("zero");
  inner_.zero(x, count);
}

void ObservedOperators::add(ConstElements a, ConstElements b, Elements out, std::int64_t count) {
  tell("add");
  inner_.add(a, b, out, count);
}

void ObservedOperators::dropout(const Dropout& dropout, ConstElements x, ConstElements residual,
                                Elements out, std::int64_t rows, std::int64_t width) {
  tell("dropout");
  inner_.dropout(dropout, x, residual, out, rows, width);
}

void ObservedOperators::rms_norm_forward(ConstElements x, const float* weight, Elements y,
                                         float* rstd, std::int64_t rows, std::int64_t width,
                                         float eps) {
  tell("rms_norm_forward");
  inner_.rms_norm_forward(x, weight, y, rstd, rows, width, eps);
}

void ObservedOperators::residual_rms_norm_forward(ConstElements x, ConstElements delta,
                                                  const float* weight, Elements sum, Elements y,
                                                  float* rstd, std::int64_t rows,
                                                  std::int64_t width, float eps) {
  tell("residual_rms_norm_forward");
  inner_.residual_rms_norm_forward(x, delta, weight, sum, y, rstd, rows, width, eps);
}

void ObservedOperators::scale(float* x, std::int64_t stride, float factor, std::int64_t rows,
                              std::int64_t width) {
  tell("scale");
  inner_.scale(x, stride, factor, rows, width);
}

void ObservedOperators::rms_norm_apply(ConstElements x, const float* weight, const float* rstd,
                                       Elements y, std::int64_t rows, std::int64_t width) {
  tell("rms_norm_apply");
  inner_.rms_norm_apply(x, weight, rstd, y, rows, width);
}

void ObservedOperators::rms_norm_backward(ConstElements dy, ConstElements x, const float* weight,
                                          const float* rstd, Elements dx, float* dweight,
                                          std::int64_t rows, std::int64_t width) {
  tell("rms_norm_backward");
  inner_.rms_norm_backward(dy, x, weight, rstd, dx, dweight, rows, width);
}

void ObservedOperators::layer_norm_forward(ConstElements x, const float* weight, const float* bias,
                                           Elements y, float* mean, float* rstd, std::int64_t rows,
                                           std::int64_t width, float eps) {
  tell("layer_norm_forward");
  inner_.layer_norm_forward(x, weight, bias, y, mean, rstd, rows, width, eps);
}

void ObservedOperators::layer_norm_apply(ConstElements x, const float* weight, const float* bias,
                                         const float* mean, const float* rstd, Elements y,
                                         std::int64_t rows, std::int64_t width) {
  tell("layer_norm_apply");
  inner_.layer_norm_apply(x, weight, bias, mean, rstd, y, rows, width);
}

void ObservedOperators::layer_norm_backward(ConstElements dy, ConstElements x, const float* weight,
                                            const float* mean, const float* rstd, Elements dx,
                                            float* dweight, float* dbias, std::int64_t rows,
                                            std::int64_t width) {
  tell("layer_norm_backward");
  inner_.layer_norm_backward(dy, x, weight, mean, rstd, dx, dweight, dbias, rows, width);
}

void ObservedOperators::head_norm_forward(ConstElements x, std::int64_t x_stride,
                                          const float* weight, Elements y, std::int64_t y_stride,
                                          float* rstd, std::int64_t rows, std::int64_t heads,
                                          std::int64_t head_dim, float eps) {
  tell("head_norm_forward");
  inner_.head_norm_forward(x, x_stride, weight, y, y_stride, rstd, rows, heads, head_dim, eps);
}

void ObservedOperators::head_norm_backward(Elements dy, std::int64_t stride, ConstElements x,
                                           std::int64_t x_stride, const float* weight,
                                           const float* rstd, float* dweight, std::int64_t rows,
                                           std::int64_t heads, std::int64_t head_dim) {
  tell("head_norm_backward");
  inner_.head_norm_backward(dy, stride, x, x_stride, weight, rstd, dweight, rows, heads, head_dim);
}

void ObservedOperators::add_bias(Elements y, std::int64_t stride, const float* bias,
                                 std::int64_t rows, std::int64_t width) {
  tell("add_bias");
  inner_.add_bias(y, stride, bias, rows, width);
}

void ObservedOperators::bias_backward(ConstElements dy, std::int64_t stride, float* dbias,
                                      std::int64_t rows, std::int64_t width) {
  tell("bias_backward");
  inner_.bias_backward(dy, stride, dbias, rows, width);
}

void ObservedOperators::rope(Elements x, std::int64_t stride, const std::int32_t* positions,
                             const float* cosine, const float* sine, std::int64_t rows,
                             std::int64_t heads, std::int64_t head_dim, RopeDirection direction) {
  tell("rope");
  inner_.rope(x, stride, positions, cosine, sine, rows, heads, head_dim, direction);
}

void ObservedOperators::attention_forward(const AttentionShape& shape, ConstElements q,
                                          ConstElements k, ConstElements v, Elements out,
                                          float* log_sum_exp) {
  tell("attention_forward");
  inner_.attention_forward(shape, q, k, v, out, log_sum_exp);
}

void ObservedOperators::attention_backward(const AttentionShape& shape, ConstElements q,
                                           ConstElements k, ConstElements v, ConstElements out,
                                           const float* log_sum_exp, ConstElements dout,
                                           Elements dq, Elements dk, Elements dv) {
  tell("attention_backward");
  inner_.attention_backward(shape, q, k, v, out, log_sum_exp, dout, dq, dk, dv);
}

void ObservedOperators::swiglu_forward(ConstElements gate_up, Elements act, std::int64_t rows,
                                       std::int64_t width) {
  tell("swiglu_forward");
  inner_.swiglu_forward(gate_up, act, rows, width);
}

void ObservedOperators::swiglu_backward(Elements gate_up, ConstElements dact, Elements act,
                                        std::int64_t rows, std::int64_t width) {
  tell("swiglu_backward");
  inner_.swiglu_backward(gate_up, dact, act, rows, width);
}

void ObservedOperators::gelu_forward(ConstElements x, Elements act, std::int64_t count) {
  tell("gelu_forward");
  inner_.gelu_forward(x, act, count);
}

void ObservedOperators::gelu_backward(Elements x, ConstElements dact, Elements act,
                                      std::int64_t count) {
  tell("gelu_backward");
  inner_.gelu_backward(x, dact, act, count);
}

void ObservedOperators::embedding_forward(const std::int32_t* ids, const void* table,
                                          DType table_type, Elements out, std::int64_t rows,
                                          std::int64_t width) {
  tell("embedding_forward");
  inner_.embedding_forward(ids, table, table_type, out, rows, width);
}

void ObservedOperators::embedding_backward(const std::int32_t* ids, ConstElements dout,
                                           float* dweight, std::int64_t rows, std::int64_t width) {
  tell("embedding_backward");
  inner_.embedding_backward(ids, dout, dweight, rows, width);
}

void ObservedOperators::cross_entropy(float* logits, const std::int32_t* labels, float* losses,
                                      float scale, bool gradient, std::int64_t rows,
                                      std::int64_t classes) {
  tell("cross_entropy");
  inner_.cross_entropy(logits, labels, losses, scale, gradient, rows, classes);
}

void ObservedOperators::cross_entropy_bf16(float* logits, const std::int32_t* labels, float* losses,
                                           float scale, std::uint16_t* gradient, std::int64_t rows,
                                           std::int64_t classes) {
  tell("cross_entropy");
  inner_.cross_entropy_bf16(logits, labels, losses, scale, gradient, rows, classes);
}

}  // namespace troupe::train

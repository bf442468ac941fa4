#pragma once
// The operator table: everything a model asks of a device. train/cpu implements it; a CUDA
// implementation is the same table over device pointers.
//
// Tensors are row-major, in memory of the implementation's device; a `stride` is the distance of
// two rows in elements. Activations (Elements) are fp32, or bf16 where stores_bf16() says so: all
// of one call have one type; what is computed of them is computed in fp32 and rounded once, to
// nearest, when it is stored. Everything else (floats) is fp32. Calls take effect in program order.
// One thread calls at a time; the implementation parallelises inside. Results do not depend on how
// many threads it uses: every reduction has a fixed order. Sizes must be positive unless said
// otherwise. Outputs must not overlap inputs except where "in place" is said.

#include <cstddef>
#include <cstdint>

#include "runtime/base/status.h"
#include "train/tensor/dropout.h"
#include "train/tensor/dtype.h"
#include "train/tensor/elements.h"

namespace troupe::train {

// What a product is computed in.
enum class Arithmetic {
  kFp32,
  // Operands are bf16 (an fp32 one is rounded first: to nearest, ties to even), products and sums
  // are fp32.
  kBf16,
};

// What a device may round an operand to that was asked to multiply in 8 bits (CudaOptions::fp8).
// Other devices, and products in fp32, take operands as they are.
enum class Narrow {
  kNot,
  kValue,     // E4M3: an activation, a weight
  kGradient,  // E5M2: what is passed back
};

// What becomes of a product's sums before they are stored, where a device does that in the product
// itself: see Operators::fuses.
enum class Epilogue {
  kNone,
  kBias,          // c = sum + bias
  kBiasGelu,      // gelu_input = sum + bias, c = GELU of that, before it was rounded
  kGeluGradient,  // c = sum · GELU′(gelu_input)
};

// C = op(A)·op(B), or C += op(A)·op(B) with `accumulate`.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  // a: (m, k), or (k, m) with transpose_a. b: (k, n), or (n, k) with transpose_b. c: (m, n).
  // Types are kF32, or kBF16 in a product that is computed in bf16; that of c as activations' are.
  const void* a = nullptr;
  DType a_type = DType::kF32;
  std::int64_t a_stride = 0;
  bool transpose_a = false;
  const void* b = nullptr;
  DType b_type = DType::kF32;
  std::int64_t b_stride = 0;
  bool transpose_b = false;
  Elements c;
  std::int64_t c_stride = 0;
  bool accumulate = false;
  Arithmetic arithmetic = Arithmetic::kFp32;
  Narrow narrow_a = Narrow::kNot, narrow_b = Narrow::kNot;
  // Other than kNone: of a product that fuses() takes, and that is not accumulated.
  Epilogue epilogue = Epilogue::kNone;
  const void* bias = nullptr;  // (n), of c's type
  // (m, n), of c's type and by its stride: kBiasGelu writes it, kGeluGradient reads it.
  Elements gelu_input = {};
};

// Shapes of causal attention with grouped queries. Query row t of a batch row sees the keys
// first_key[t] … key_length − query_length + t; without first_key it sees them from 0.
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t query_length = 0;  // ≤ key_length
  std::int64_t key_length = 0;
  std::int64_t query_heads = 0;
  std::int64_t key_heads = 0;  // divides query_heads; query head h uses key head h / (ratio)
  std::int64_t head_dim = 0;
  std::int64_t query_stride = 0;  // of q, and of its gradient
  std::int64_t key_stride = 0;    // of k and v, and of their gradients
  // From one batch row's first key to the next one's; key_length·key_stride when they are dense.
  std::int64_t key_batch_stride = 0;
  float scale = 1.0f;
  // (batch, query_length), or null. Rows of one segment (or window) share or raise it: it must not
  // fall within a batch row.
  const std::int32_t* first_key = nullptr;
  // Not 0: first_key is that of a window of so many keys and of nothing else, so that a device may
  // leave it unread. 0 says nothing of it.
  std::int64_t window = 0;
  // kBf16: the device may round what enters a product to bf16, where that is faster. The softmax
  // and all sums are fp32 in either case.
  Arithmetic arithmetic = Arithmetic::kFp32;
  // Of the weights after the softmax; rows are queries, columns keys by their place in the query's
  // sample. Its site is head 0's, the others' follow on.
  Dropout dropout = {};
};

enum class RopeDirection { kForward, kBackward };

class Operators {
 public:
  virtual ~Operators() = default;

  // Whether the device computes products in bf16 faster than in fp32. Where it does not, they are
  // computed with operands that hold rounded values: the same meaning, no gain.
  virtual bool fast_bf16() const = 0;
  // Whether activations may be bf16. Where not, they end the process.
  virtual bool stores_bf16() const = 0;
  // The first failure that calls so far met, on a device that may fail: nothing was computed since,
  // and results are worth nothing. Does not wait for work that is under way. Ok where operators
  // cannot fail.
  virtual Status failure() const { return {}; }
  // What is called from here to end_block() is one block of a pass; nothing but calls of this table
  // concerns the device in between. A device may keep the block's work until its end, and do it by
  // a shorter way where the same comes again: results are the same. `block` tells one from others
  // that come back. Blocks do not nest. See OperatorBlock.
  virtual void begin_block(int block) { static_cast<void>(block); }
  virtual void end_block() {}

  // Between host memory and the device's; done when the call returns.
  virtual void upload(const void* host, void* device, std::size_t bytes) = 0;
  virtual void download(const void* device, void* host, std::size_t bytes) = 0;
  // to row i = from row i. (rows, width) by their strides.
  virtual void copy_rows(ConstElements from, std::int64_t from_stride, Elements to,
                         std::int64_t to_stride, std::int64_t rows, std::int64_t width) = 0;

  virtual void gemm(const Gemm& gemm) = 0;
  // Whether gemm() does this product's epilogue. Where not, whoever asks computes the product
  // without it and calls what follows by itself. The same answer for the same product.
  virtual bool fuses(const Gemm& gemm) {
    static_cast<void>(gemm);
    return false;
  }
  virtual void zero(Elements x, std::int64_t count) = 0;
  // out = a + b; out may be a or b.
  virtual void add(ConstElements a, ConstElements b, Elements out, std::int64_t count) = 0;
  // x row i *= factor. x: (rows, width) by its stride, fp32.
  virtual void scale(float* x, std::int64_t stride, float factor, std::int64_t rows,
                     std::int64_t width) = 0;

  // out = residual + x where it stays, times the scale, or 0 where it does not; a null residual is
  // nothing. The gradient of x is that of out under the same dropout. All: (rows, width); out may
  // be x or residual. `dropout` must be one.
  virtual void dropout(const Dropout& dropout, ConstElements x, ConstElements residual,
                       Elements out, std::int64_t rows, std::int64_t width) = 0;

  // y = x·rsqrt(mean(x²) + eps)·w. x, y: (rows, width), w: (width), rstd: (rows), kept for
  // backward.
  virtual void rms_norm_forward(ConstElements x, const float* weight, Elements y, float* rstd,
                                std::int64_t rows, std::int64_t width, float eps) = 0;
  // sum = x + delta, y = norm(sum)·w in one pass, of the sum as it is stored. sum may be x.
  virtual void residual_rms_norm_forward(ConstElements x, ConstElements delta, const float* weight,
                                         Elements sum, Elements y, float* rstd, std::int64_t rows,
                                         std::int64_t width, float eps) = 0;
  // y again from x and the rstd of the forward pass: the same bits.
  virtual void rms_norm_apply(ConstElements x, const float* weight, const float* rstd, Elements y,
                              std::int64_t rows, std::int64_t width) = 0;
  // Adds to dx (rows, width) and to dweight (width); a null dweight is not wanted.
  virtual void rms_norm_backward(ConstElements dy, ConstElements x, const float* weight,
                                 const float* rstd, Elements dx, float* dweight, std::int64_t rows,
                                 std::int64_t width) = 0;

  // y = (x − mean)·rstd·w + b with rstd = rsqrt(var + eps), var over the width. x, y: (rows,
  // width), weight, bias: (width), mean, rstd: (rows), kept for backward.
  virtual void layer_norm_forward(ConstElements x, const float* weight, const float* bias,
                                  Elements y, float* mean, float* rstd, std::int64_t rows,
                                  std::int64_t width, float eps) = 0;
  // y again from x and the forward pass's mean and rstd: the same bits.
  virtual void layer_norm_apply(ConstElements x, const float* weight, const float* bias,
                                const float* mean, const float* rstd, Elements y, std::int64_t rows,
                                std::int64_t width) = 0;
  // Adds to dx (rows, width), dweight and dbias (width); where both are null they are not wanted.
  virtual void layer_norm_backward(ConstElements dy, ConstElements x, const float* weight,
                                   const float* mean, const float* rstd, Elements dx,
                                   float* dweight, float* dbias, std::int64_t rows,
                                   std::int64_t width) = 0;

  // RMS norm over each of `heads` heads that lie side by side in a row: x, y: (rows, ≥
  // heads·head_dim) by their strides; y may be x. weight: (head_dim). rstd: (rows, heads).
  virtual void head_norm_forward(ConstElements x, std::int64_t x_stride, const float* weight,
                                 Elements y, std::int64_t y_stride, float* rstd, std::int64_t rows,
                                 std::int64_t heads, std::int64_t head_dim, float eps) = 0;
  // Replaces dy, by its stride, by the gradient of x and adds to dweight (head_dim), where that is
  // wanted: not null.
  virtual void head_norm_backward(Elements dy, std::int64_t stride, ConstElements x,
                                  std::int64_t x_stride, const float* weight, const float* rstd,
                                  float* dweight, std::int64_t rows, std::int64_t heads,
                                  std::int64_t head_dim) = 0;

  // y row i += bias. y: (rows, width) by its stride, bias: (width).
  virtual void add_bias(Elements y, std::int64_t stride, const float* bias, std::int64_t rows,
                        std::int64_t width) = 0;
  // dbias += Σ rows of dy, in order of the rows.
  virtual void bias_backward(ConstElements dy, std::int64_t stride, float* dbias, std::int64_t rows,
                             std::int64_t width) = 0;

  // Rotates in place the `heads` heads that lie side by side in each row of x (rows, ≥
  // heads·head_dim): halves, not interleaved. positions: (rows). cosine, sine: (positions, head_dim
  // / 2).
  virtual void rope(Elements x, std::int64_t stride, const std::int32_t* positions,
                    const float* cosine, const float* sine, std::int64_t rows, std::int64_t heads,
                    std::int64_t head_dim, RopeDirection direction) = 0;

  // q: (batch·query_length, query_heads·head_dim), k, v: (batch, key_length, key_heads·head_dim) by
  // their strides. out: (batch·query_length, query_heads·head_dim) dense. log_sum_exp: (batch,
  // query_heads, query_length) for backward, or null.
  virtual void attention_forward(const AttentionShape& shape, ConstElements q, ConstElements k,
                                 ConstElements v, Elements out, float* log_sum_exp) = 0;
  // Overwrites dq, dk, dv, which have the strides of q, k, v. query_length must be key_length.
  virtual void attention_backward(const AttentionShape& shape, ConstElements q, ConstElements k,
                                  ConstElements v, ConstElements out, const float* log_sum_exp,
                                  ConstElements dout, Elements dq, Elements dk, Elements dv) = 0;

  // act = silu(gate)·up. gate_up: (rows, 2·width), gate first. act: (rows, width).
  virtual void swiglu_forward(ConstElements gate_up, Elements act, std::int64_t rows,
                              std::int64_t width) = 0;
  // Replaces gate_up by its gradient and writes act again, the same bits, unless it is null. dact,
  // act: (rows, width); act may be dact.
  virtual void swiglu_backward(Elements gate_up, ConstElements dact, Elements act,
                               std::int64_t rows, std::int64_t width) = 0;

  // act = ½x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), HF's gelu_new. x, act: (count); act may be x.
  virtual void gelu_forward(ConstElements x, Elements act, std::int64_t count) = 0;
  // Replaces x by its gradient and writes act again, the same bits, unless it is null. act may be
  // dact.
  virtual void gelu_backward(Elements x, ConstElements dact, Elements act, std::int64_t count) = 0;

  // out row i = table row ids[i]. ids: (rows), within the table, whose elements are kF32 or kBF16.
  // Also a gather of any rows.
  virtual void embedding_forward(const std::int32_t* ids, const void* table, DType table_type,
                                 Elements out, std::int64_t rows, std::int64_t width) = 0;
  // dweight row ids[i] += dout row i, in order of i. Also a scatter of any rows.
  virtual void embedding_backward(const std::int32_t* ids, ConstElements dout, float* dweight,
                                  std::int64_t rows, std::int64_t width) = 0;

  // losses[i] = log Σ exp(logits[i]) − logits[i][labels[i]]. With `gradient`, logits become
  // (softmax − one-hot)·scale in place, else they are destroyed. logits: (rows, classes) dense,
  // losses: (rows), labels: (rows) within the classes.
  virtual void cross_entropy(float* logits, const std::int32_t* labels, float* losses, float scale,
                             bool gradient, std::int64_t rows, std::int64_t classes) = 0;
  // The same losses; gradient (rows, classes) = that of cross_entropy rounded to bf16, logits are
  // destroyed.
  virtual void cross_entropy_bf16(float* logits, const std::int32_t* labels, float* losses,
                                  float scale, std::uint16_t* gradient, std::int64_t rows,
                                  std::int64_t classes) = 0;
};

// A block of operators' calls, for as long as the object lives.
class OperatorBlock {
 public:
  OperatorBlock(Operators& operators, int block) : operators_(operators) {
    operators_.begin_block(block);
  }
  ~OperatorBlock() { operators_.end_block(); }
  OperatorBlock(const OperatorBlock&) = delete;
  OperatorBlock& operator=(const OperatorBlock&) = delete;

 private:
  Operators& operators_;
};

}  // namespace troupe::train

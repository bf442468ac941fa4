// The fake's operators: train/cpu's, in the stream. bf16 activations are expanded, computed with in
// fp32 and rounded once.

#include <cstring>

#include "tests/train/cuda/fake/fake_launch.h"
#include "train/cuda/kernels/scratch_sizes.h"
#include "train/tensor/convert.h"

namespace troupe::tests::fake {
namespace {

namespace cuda = train::cuda;
using train::Operators;

int convert(TroupeCudaStream* stream, const void* from, std::int32_t from_type, void* to,
            std::int32_t to_type, std::int64_t count) {
  return Launch(stream, "convert")
      .activations_of(from_type)
      .activations_of(to_type)
      .needs(from, count, from_type, "from")
      .needs(to, count, to_type, "to")
      .run([=](Operators&) {
        const In in(from_type, from, count);
        InOut out(to_type, to, count);
        std::memcpy(static_cast<float*>(out), static_cast<const float*>(in),
                    static_cast<std::size_t>(count) * sizeof(float));
      });
}

int round_to_bf16(TroupeCudaStream* stream, const float* x, float* out, std::int64_t count) {
  return Launch(stream, "round_to_bf16")
      .floats(x, count, "x")
      .floats(out, count, "out")
      .run([=](Operators&) { train::round_to_bf16(x, out, count); });
}

int add(TroupeCudaStream* stream, std::int32_t type, const void* a, const void* b, void* out,
        std::int64_t count) {
  return Launch(stream, "add")
      .activations_of(type)
      .needs(a, count, type, "a")
      .needs(b, count, type, "b")
      .needs(out, count, type, "out")
      .run([=](Operators& cpu) {
        const In left(type, a, count), right(type, b, count);
        InOut sum(type, out, count);
        cpu.add(left, right, sum, count);
      });
}

// What train/cpu takes for it.
train::Dropout dropout_of(const TroupeCudaDropout& d) {
  return {.threshold = d.threshold,
          .scale = d.scale,
          .seed = d.seed,
          .epoch = d.epoch,
          .site = d.site,
          .samples = d.samples,
          .tokens = d.tokens};
}

int dropout(TroupeCudaStream* stream, std::int32_t type, const TroupeCudaDropout* given,
            const void* x, const void* residual, void* out, std::int64_t rows, std::int64_t width) {
  const train::Dropout drop = dropout_of(*given);
  const std::int64_t count = rows * width;
  return Launch(stream, "dropout")
      .activations_of(type)
      .requires_that(static_cast<bool>(drop), "a dropout that leaves nothing out")
      .needs(drop.samples, rows, TROUPE_CUDA_I32, "samples")
      .needs(drop.tokens, rows, TROUPE_CUDA_I32, "tokens")
      .needs(x, count, type, "x")
      .needs(residual, count, type, "residual", true)
      .needs(out, count, type, "out")
      .run([=](Operators& cpu) {
        const In from(type, x, count), added(type, residual, residual ? count : 0);
        InOut to(type, out, count);
        cpu.dropout(drop, from, residual ? train::ConstElements(added) : nullptr, to, rows, width);
      });
}

int rms_norm_forward(TroupeCudaStream* stream, std::int32_t type, const void* x,
                     const float* weight, void* y, float* rstd, std::int64_t rows,
                     std::int64_t width, float eps) {
  const std::int64_t count = rows * width;
  return Launch(stream, "rms_norm_forward")
      .activations_of(type)
      .needs(x, count, type, "x")
      .floats(weight, width, "weight")
      .needs(y, count, type, "y")
      .floats(rstd, rows, "rstd")
      .run([=](Operators& cpu) {
        const In from(type, x, count);
        InOut to(type, y, count);
        cpu.rms_norm_forward(from, weight, to, rstd, rows, width, eps);
      });
}

int residual_rms_norm_forward(TroupeCudaStream* stream, std::int32_t type, const void* x,
                              const void* delta, const float* weight, void* sum, void* y,
                              float* rstd, std::int64_t rows, std::int64_t width, float eps) {
  const std::int64_t count = rows * width;
  return Launch(stream, "residual_rms_norm_forward")
      .activations_of(type)
      .needs(x, count, type, "x")
      .needs(delta, count, type, "delta")
      .floats(weight, width, "weight")
      .needs(sum, count, type, "sum")
      .needs(y, count, type, "y")
      .floats(rstd, rows, "rstd")
      .run([=](Operators& cpu) {
        {
          const In left(type, x, count), right(type, delta, count);
          InOut total(type, sum, count);
          cpu.add(left, right, total, count);
        }
        // Of the sum as it is kept: rms_norm_apply gives the same bits.
        const In from(type, sum, count);
        InOut to(type, y, count);
        cpu.rms_norm_forward(from, weight, to, rstd, rows, width, eps);
      });
}

int rms_norm_apply(TroupeCudaStream* stream, std::int32_t type, const void* x, const float* weight,
                   const float* rstd, void* y, std::int64_t rows, std::int64_t width) {
  const std::int64_t count = rows * width;
  return Launch(stream, "rms_norm_apply")
      .activations_of(type)
      .needs(x, count, type, "x")
      .floats(weight, width, "weight")
      .floats(rstd, rows, "rstd")
      .needs(y, count, type, "y")
      .run([=](Operators& cpu) {
        const In from(type, x, count);
        InOut to(type, y, count);
        cpu.rms_norm_apply(from, weight, rstd, to, rows, width);
      });
}

int rms_norm_backward(TroupeCudaStream* stream, std::int32_t type, const void* dy, const void* x,
                      const float* weight, const float* rstd, void* dx, float* dweight,
                      std::int64_t rows, std::int64_t width, void* scratch) {
  const std::int64_t count = rows * width;
  return Launch(stream, "rms_norm_backward")
      .activations_of(type)
      .needs(dy, count, type, "dy")
      .needs(x, count, type, "x")
      .floats(weight, width, "weight")
      .floats(rstd, rows, "rstd")
      .needs(dx, count, type, "dx")
      .floats(dweight, width, "dweight")
      .scratch(scratch, cuda::row_sum_scratch_size(rows, width))
      .run([=](Operators& cpu) {
        const In gradient(type, dy, count), from(type, x, count);
        InOut to(type, dx, count);
        cpu.rms_norm_backward(gradient, from, weight, rstd, to, dweight, rows, width);
      });
}

int layer_norm_forward(TroupeCudaStream* stream, std::int32_t type, const void* x,
                       const float* weight, const float* bias, void* y, float* mean, float* rstd,
                       std::int64_t rows, std::int64_t width, float eps) {
  const std::int64_t count = rows * width;
  return Launch(stream, "layer_norm_forward")
      .activations_of(type)
      .needs(x, count, type, "x")
      .floats(weight, width, "weight")
      .floats(bias, width, "bias")
      .needs(y, count, type, "y")
      .floats(mean, rows, "mean")
      .floats(rstd, rows, "rstd")
      .run([=](Operators& cpu) {
        const In from(type, x, count);
        InOut to(type, y, count);
        cpu.layer_norm_forward(from, weight, bias, to, mean, rstd, rows, width, eps);
      });
}

int layer_norm_apply(TroupeCudaStream* stream, std::int32_t type, const void* x,
                     const float* weight, const float* bias, const float* mean, const float* rstd,
                     void* y, std::int64_t rows, std::int64_t width) {
  const std::int64_t count = rows * width;
  return Launch(stream, "layer_norm_apply")
      .activations_of(type)
      .needs(x, count, type, "x")
      .floats(weight, width, "weight")
      .floats(bias, width, "bias")
      .floats(mean, rows, "mean")
      .floats(rstd, rows, "rstd")
      .needs(y, count, type, "y")
      .run([=](Operators& cpu) {
        const In from(type, x, count);
        InOut to(type, y, count);
        cpu.layer_norm_apply(from, weight, bias, mean, rstd, to, rows, width);
      });
}

int layer_norm_backward(TroupeCudaStream* stream, std::int32_t type, const void* dy, const void* x,
                        const float* weight, const float* mean, const float* rstd, void* dx,
                        float* dweight, float* dbias, std::int64_t rows, std::int64_t width,
                        void* scratch) {
  const std::int64_t count = rows * width;
  return Launch(stream, "layer_norm_backward")
      .activations_of(type)
      .needs(dy, count, type, "dy")
      .needs(x, count, type, "x")
      .floats(weight, width, "weight")
      .floats(mean, rows, "mean")
      .floats(rstd, rows, "rstd")
      .needs(dx, count, type, "dx")
      .floats(dweight, width, "dweight")
      .floats(dbias, width, "dbias")
      .scratch(scratch, 2 * cuda::row_sum_scratch_size(rows, width))
      .run([=](Operators& cpu) {
        const In gradient(type, dy, count), from(type, x, count);
        InOut to(type, dx, count);
        cpu.layer_norm_backward(gradient, from, weight, mean, rstd, to, dweight, dbias, rows,
                                width);
      });
}

int head_norm_forward(TroupeCudaStream* stream, std::int32_t type, const void* x,
                      std::int64_t x_stride, const float* weight, void* y, std::int64_t y_stride,
                      float* rstd, std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                      float eps) {
  const std::int64_t x_count = extent(rows, x_stride, heads * head_dim),
                     y_count = extent(rows, y_stride, heads * head_dim);
  return Launch(stream, "head_norm_forward")
      .activations_of(type)
      .needs(x, x_count, type, "x")
      .floats(weight, head_dim, "weight")
      .needs(y, y_count, type, "y")
      .floats(rstd, rows * heads, "rstd")
      .run([=](Operators& cpu) {
        const In from(type, x, x_count);
        InOut to(type, y, y_count);
        if (x == y)
          cpu.head_norm_forward(to, x_stride, weight, to, y_stride, rstd, rows, heads, head_dim,
                                eps);
        else
          cpu.head_norm_forward(from, x_stride, weight, to, y_stride, rstd, rows, heads, head_dim,
                                eps);
      });
}

int head_norm_backward(TroupeCudaStream* stream, std::int32_t type, void* dy, std::int64_t stride,
                       const void* x, std::int64_t x_stride, const float* weight, const float* rstd,
                       float* dweight, std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                       void* scratch) {
  const std::int64_t count = extent(rows, stride, heads * head_dim),
                     x_count = extent(rows, x_stride, heads * head_dim);
  return Launch(stream, "head_norm_backward")
      .activations_of(type)
      .needs(dy, count, type, "dy")
      .needs(x, x_count, type, "x")
      .floats(weight, head_dim, "weight")
      .floats(rstd, rows * heads, "rstd")
      .floats(dweight, head_dim, "dweight")
      .scratch(scratch, cuda::row_sum_scratch_size(rows * heads, head_dim))
      .run([=](Operators& cpu) {
        InOut gradient(type, dy, count);
        const In from(type, x, x_count);
        cpu.head_norm_backward(gradient, stride, from, x_stride, weight, rstd, dweight, rows, heads,
                               head_dim);
      });
}

int add_bias(TroupeCudaStream* stream, std::int32_t type, void* y, std::int64_t stride,
             const float* bias, std::int64_t rows, std::int64_t width) {
  const std::int64_t count = extent(rows, stride, width);
  return Launch(stream, "add_bias")
      .activations_of(type)
      .needs(y, count, type, "y")
      .floats(bias, width, "bias")
      .run([=](Operators& cpu) {
        InOut to(type, y, count);
        cpu.add_bias(to, stride, bias, rows, width);
      });
}

int bias_backward(TroupeCudaStream* stream, std::int32_t type, const void* dy, std::int64_t stride,
                  float* dbias, std::int64_t rows, std::int64_t width, void* scratch) {
  const std::int64_t count = extent(rows, stride, width);
  return Launch(stream, "bias_backward")
      .activations_of(type)
      .needs(dy, count, type, "dy")
      .floats(dbias, width, "dbias")
      .scratch(scratch, cuda::row_sum_scratch_size(rows, width))
      .run([=](Operators& cpu) {
        const In gradient(type, dy, count);
        cpu.bias_backward(gradient, stride, dbias, rows, width);
      });
}

int rope(TroupeCudaStream* stream, std::int32_t type, void* x, std::int64_t stride,
         const std::int32_t* positions, const float* cosine, const float* sine, std::int64_t rows,
         std::int64_t heads, std::int64_t head_dim, std::int32_t backward) {
  const std::int64_t count = extent(rows, stride, heads * head_dim);
  return Launch(stream, "rope")
      .activations_of(type)
      .needs(x, count, type, "x")
      .needs(positions, rows, TROUPE_CUDA_I32, "positions")
      .floats(cosine, head_dim / 2, "cosine")
      .floats(sine, head_dim / 2, "sine")
      .run([=](Operators& cpu) {
        InOut to(type, x, count);
        cpu.rope(to, stride, positions, cosine, sine, rows, heads, head_dim,
                 backward ? train::RopeDirection::kBackward : train::RopeDirection::kForward);
      });
}

train::AttentionShape shape_of(const TroupeCudaAttention& shape, const TroupeCudaDropout& drop) {
  return {.batch = shape.batch,
          .query_length = shape.query_length,
          .key_length = shape.key_length,
          .query_heads = shape.query_heads,
          .key_heads = shape.key_heads,
          .head_dim = shape.head_dim,
          .query_stride = shape.query_stride,
          .key_stride = shape.key_stride,
          .key_batch_stride = shape.key_batch_stride,
          .scale = shape.scale,
          .first_key = shape.first_key,
          .dropout = dropout_of(drop)};
}

// Elements of the operands of attention.
struct AttentionSizes {
  explicit AttentionSizes(const TroupeCudaAttention& s)
      : tokens(s.batch * s.query_length),
        queries(extent(tokens, s.query_stride, s.query_heads * s.head_dim)),
        keys((s.batch - 1) * s.key_batch_stride +
             extent(s.key_length, s.key_stride, s.key_heads * s.head_dim)),
        outputs(tokens * s.query_heads * s.head_dim),
        statistics(tokens * s.query_heads) {}
  std::int64_t tokens, queries, keys, outputs, statistics;
};

// What rows a dropout reads; none where there is none.
Launch& needs_rows(Launch& launch, const TroupeCudaDropout& drop, std::int64_t rows) {
  if (drop.threshold == 0) return launch;
  return launch.needs(drop.samples, rows, TROUPE_CUDA_I32, "samples")
      .needs(drop.tokens, rows, TROUPE_CUDA_I32, "tokens");
}

int attend_forward(TroupeCudaStream* stream, const char* function, const TroupeCudaAttention& shape,
                   const TroupeCudaDropout& drop, const void* q, const void* k, const void* v,
                   void* out, float* log_sum_exp) {
  const AttentionSizes sizes(shape);
  const int type = shape.type;
  Launch launch(stream, function);
  return needs_rows(launch, drop, sizes.tokens)
      .activations_of(type)
      .needs(q, sizes.queries, type, "q")
      .needs(k, sizes.keys, type, "k")
      .needs(v, sizes.keys, type, "v")
      .needs(out, sizes.outputs, type, "out")
      .floats(log_sum_exp, sizes.statistics, "log_sum_exp", true)
      .needs(shape.first_key, sizes.tokens, TROUPE_CUDA_I32, "first_key", true)
      .run([=](Operators& cpu) {
        const In queries(type, q, sizes.queries), keys(type, k, sizes.keys),
            values(type, v, sizes.keys);
        InOut to(type, out, sizes.outputs);
        cpu.attention_forward(shape_of(shape, drop), queries, keys, values, to, log_sum_exp);
      });
}

int attend_backward(TroupeCudaStream* stream, const char* function,
                    const TroupeCudaAttention& shape, const TroupeCudaDropout& drop, const void* q,
                    const void* k, const void* v, const void* out, const float* log_sum_exp,
                    const void* dout, void* dq, void* dk, void* dv, void* scratch) {
  const AttentionSizes sizes(shape);
  const int type = shape.type;
  Launch launch(stream, function);
  return needs_rows(launch, drop, sizes.tokens)
      .activations_of(type)
      .requires_that(shape.query_length == shape.key_length, "keys that have no queries")
      .needs(q, sizes.queries, type, "q")
      .needs(k, sizes.keys, type, "k")
      .needs(v, sizes.keys, type, "v")
      .needs(out, sizes.outputs, type, "out")
      .floats(log_sum_exp, sizes.statistics, "log_sum_exp")
      .needs(dout, sizes.outputs, type, "dout")
      .needs(dq, sizes.queries, type, "dq")
      .needs(dk, sizes.keys, type, "dk")
      .needs(dv, sizes.keys, type, "dv")
      .needs(shape.first_key, sizes.tokens, TROUPE_CUDA_I32, "first_key", true)
      .scratch(scratch, cuda::attention_scratch_size(sizes.statistics))
      .run([=](Operators& cpu) {
        const In queries(type, q, sizes.queries), keys(type, k, sizes.keys),
            values(type, v, sizes.keys), result(type, out, sizes.outputs),
            gradient(type, dout, sizes.outputs);
        if (type == TROUPE_CUDA_F32) {
          // Gradients may lie side by side in one matrix: as they are.
          cpu.attention_backward(shape_of(shape, drop), queries, keys, values, result, log_sum_exp,
                                 gradient, static_cast<float*>(dq), static_cast<float*>(dk),
                                 static_cast<float*>(dv));
          return;
        }
        std::vector<float> query_gradient(static_cast<std::size_t>(sizes.queries)),
            key_gradient(static_cast<std::size_t>(sizes.keys)), value_gradient(key_gradient);
        cpu.attention_backward(shape_of(shape, drop), queries, keys, values, result, log_sum_exp,
                               gradient, query_gradient.data(), key_gradient.data(),
                               value_gradient.data());
        // Heads alone are written: between a row's and the next one's lie other tensors.
        const auto store = [](const float* from, void* to, std::int64_t batch,
                              std::int64_t batch_stride, std::int64_t rows, std::int64_t stride,
                              std::int64_t width) {
          for (std::int64_t b = 0; b < batch; ++b)
            for (std::int64_t row = 0; row < rows; ++row) {
              const std::int64_t at = b * batch_stride + row * stride;
              InOut target(TROUPE_CUDA_BF16, static_cast<std::uint16_t*>(to) + at, width);
              for (std::int64_t i = 0; i < width; ++i)
                static_cast<float*>(target)[i] = from[at + i];
            }
        };
        store(query_gradient.data(), dq, 1, 0, sizes.tokens, shape.query_stride,
              shape.query_heads * shape.head_dim);
        for (const auto& [from, to] :
             {std::pair(&key_gradient, dk), std::pair(&value_gradient, dv)})
          store(from->data(), to, shape.batch, shape.key_batch_stride, shape.key_length,
                shape.key_stride, shape.key_heads * shape.head_dim);
      });
}

int attention_forward(TroupeCudaStream* stream, const TroupeCudaAttention* shape, const void* q,
                      const void* k, const void* v, void* out, float* log_sum_exp) {
  return attend_forward(stream, "attention_forward", *shape, {}, q, k, v, out, log_sum_exp);
}

int attention_backward(TroupeCudaStream* stream, const TroupeCudaAttention* shape, const void* q,
                       const void* k, const void* v, const void* out, const float* log_sum_exp,
                       const void* dout, void* dq, void* dk, void* dv, void* scratch) {
  return attend_backward(stream, "attention_backward", *shape, {}, q, k, v, out, log_sum_exp, dout,
                         dq, dk, dv, scratch);
}

int attention_dropout_forward(TroupeCudaStream* stream, const TroupeCudaAttention* shape,
                              const TroupeCudaDropout* drop, const void* q, const void* k,
                              const void* v, void* out, float* log_sum_exp) {
  return attend_forward(stream, "attention_dropout_forward", *shape, *drop, q, k, v, out,
                        log_sum_exp);
}

int attention_dropout_backward(TroupeCudaStream* stream, const TroupeCudaAttention* shape,
                               const TroupeCudaDropout* drop, const void* q, const void* k,
                               const void* v, const void* out, const float* log_sum_exp,
                               const void* dout, void* dq, void* dk, void* dv, void* scratch) {
  return attend_backward(stream, "attention_dropout_backward", *shape, *drop, q, k, v, out,
                         log_sum_exp, dout, dq, dk, dv, scratch);
}

int swiglu_forward(TroupeCudaStream* stream, std::int32_t type, const void* gate_up, void* act,
                   std::int64_t rows, std::int64_t width) {
  const std::int64_t count = rows * width;
  return Launch(stream, "swiglu_forward")
      .activations_of(type)
      .needs(gate_up, 2 * count, type, "gate_up")
      .needs(act, count, type, "act")
      .run([=](Operators& cpu) {
        const In from(type, gate_up, 2 * count);
        InOut to(type, act, count);
        cpu.swiglu_forward(from, to, rows, width);
      });
}

int swiglu_backward(TroupeCudaStream* stream, std::int32_t type, void* gate_up, const void* dact,
                    void* act, std::int64_t rows, std::int64_t width) {
  const std::int64_t count = rows * width;
  return Launch(stream, "swiglu_backward")
      .activations_of(type)
      .needs(gate_up, 2 * count, type, "gate_up")
      .needs(dact, count, type, "dact")
      .needs(act, count, type, "act", true)
      .run([=](Operators& cpu) {
        InOut both(type, gate_up, 2 * count);
        const In gradient(type, dact, count);
        InOut again(type, act, count);
        cpu.swiglu_backward(both, gradient, again, rows, width);
      });
}

int gelu_forward(TroupeCudaStream* stream, std::int32_t type, const void* x, void* act,
                 std::int64_t count) {
  return Launch(stream, "gelu_forward")
      .activations_of(type)
      .needs(x, count, type, "x")
      .needs(act, count, type, "act")
      .run([=](Operators& cpu) {
        const In from(type, x, count);
        InOut to(type, act, count);
        cpu.gelu_forward(from, to, count);
      });
}

int gelu_backward(TroupeCudaStream* stream, std::int32_t type, void* x, const void* dact, void* act,
                  std::int64_t count) {
  return Launch(stream, "gelu_backward")
      .activations_of(type)
      .needs(x, count, type, "x")
      .needs(dact, count, type, "dact")
      .needs(act, count, type, "act", true)
      .run([=](Operators& cpu) {
        InOut both(type, x, count);
        const In gradient(type, dact, count);
        InOut again(type, act, count);
        cpu.gelu_backward(both, gradient, again, count);
      });
}

int embedding_forward(TroupeCudaStream* stream, const std::int32_t* ids, const void* table,
                      std::int32_t table_type, void* out, std::int32_t type, std::int64_t rows,
                      std::int64_t width) {
  const std::int64_t count = rows * width;
  return Launch(stream, "embedding_forward")
      .activations_of(type)
      .activations_of(table_type)
      .needs(ids, rows, TROUPE_CUDA_I32, "ids")
      .needs(table, width, table_type, "table")
      .needs(out, count, type, "out")
      .run([=](Operators& cpu) {
        InOut to(type, out, count);
        cpu.embedding_forward(
            ids, table, table_type == TROUPE_CUDA_BF16 ? train::DType::kBF16 : train::DType::kF32,
            to, rows, width);
      });
}

int embedding_backward(TroupeCudaStream* stream, std::int32_t type, const std::int32_t* ids,
                       const void* dout, float* dweight, std::int64_t rows, std::int64_t width,
                       void* scratch) {
  const std::int64_t count = rows * width;
  return Launch(stream, "embedding_backward")
      .activations_of(type)
      .needs(ids, rows, TROUPE_CUDA_I32, "ids")
      .needs(dout, count, type, "dout")
      .floats(dweight, width, "dweight")
      .scratch(scratch, cuda::embedding_scratch_size(rows))
      .run([=](Operators& cpu) {
        const In gradient(type, dout, count);
        cpu.embedding_backward(ids, gradient, dweight, rows, width);
      });
}

int cross_entropy(TroupeCudaStream* stream, float* logits, const std::int32_t* labels,
                  float* losses, float scale, void* gradient, std::int32_t gradient_type,
                  std::int64_t rows, std::int64_t classes) {
  const std::int64_t count = rows * classes;
  return Launch(stream, "cross_entropy")
      .floats(logits, count, "logits")
      .needs(labels, rows, TROUPE_CUDA_I32, "labels")
      .floats(losses, rows, "losses")
      .requires_that(gradient_type < 0 || gradient_type == TROUPE_CUDA_F32 ||
                         gradient_type == TROUPE_CUDA_BF16,
                     "a gradient that is not F32 or BF16")
      .requires_that(gradient_type != TROUPE_CUDA_BF16 || gradient, "no place for the gradient")
      .needs(gradient, count, gradient_type, "gradient", true)
      .run([=](Operators& cpu) {
        if (gradient_type == TROUPE_CUDA_BF16) {
          cpu.cross_entropy_bf16(logits, labels, losses, scale,
                                 static_cast<std::uint16_t*>(gradient), rows, classes);
          return;
        }
        cpu.cross_entropy(logits, labels, losses, scale, gradient_type >= 0, rows, classes);
        if (gradient_type >= 0 && gradient)
          cpu.copy_rows(logits, classes, static_cast<float*>(gradient), classes, rows, classes);
      });
}

}  // namespace

void fill_operators(TroupeCudaTable& table) {
  table.convert = convert;
  table.round_to_bf16 = round_to_bf16;
  table.add = add;
  table.rms_norm_forward = rms_norm_forward;
  table.residual_rms_norm_forward = residual_rms_norm_forward;
  table.rms_norm_apply = rms_norm_apply;
  table.rms_norm_backward = rms_norm_backward;
  table.layer_norm_forward = layer_norm_forward;
  table.layer_norm_apply = layer_norm_apply;
  table.layer_norm_backward = layer_norm_backward;
  table.head_norm_forward = head_norm_forward;
  table.head_norm_backward = head_norm_backward;
  table.add_bias = add_bias;
  table.bias_backward = bias_backward;
  table.rope = rope;
  table.attention_forward = attention_forward;
  table.attention_backward = attention_backward;
  table.dropout = dropout;
  table.attention_dropout_forward = attention_dropout_forward;
  table.attention_dropout_backward = attention_dropout_backward;
  table.swiglu_forward = swiglu_forward;
  table.swiglu_backward = swiglu_backward;
  table.gelu_forward = gelu_forward;
  table.gelu_backward = gelu_backward;
  table.embedding_forward = embedding_forward;
  table.embedding_backward = embedding_backward;
  table.cross_entropy = cross_entropy;
}

}  // namespace troupe::tests::fake

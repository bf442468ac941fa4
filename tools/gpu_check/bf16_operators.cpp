#include "tools/gpu_check/bf16_operators.h"

#include "train/cuda/operators/table_calls.h"

namespace troupe::tools::gpu {
namespace {

using train::ConstElements;
using train::DType;
using train::Elements;
using train::Operators;

std::int64_t extent(std::int64_t rows, std::int64_t stride, std::int64_t width) {
  return (rows - 1) * stride + width;
}

}  // namespace

Status Bf16Operators::failure() const {
  return failure_.ok() ? gpu_.operators->failure() : failure_;
}

void Bf16Operators::run(const std::function<void(train::Operators&)>& call) {
  if (failure().ok()) call(*gpu_.operators);
}

void Bf16Operators::launch(const char* name, const std::function<int()>& call) {
  if (failure().ok()) failure_ = gpu_.device->status(call(), name);
}

std::byte* Bf16Operators::take(std::int64_t bytes) {
  const Result<std::byte*> memory = gpu_.take(bytes);
  if (memory.ok()) return *memory;
  if (failure_.ok()) failure_ = memory.status();
  return nullptr;
}

Elements Bf16Operators::in(ConstElements from, std::int64_t count) {
  const Elements to = room(count);
  launch("convert", [&] {
    return table().convert(stream(), from.fp32(), TROUPE_CUDA_F32, to.data, TROUPE_CUDA_BF16,
                           count);
  });
  return to;
}

void Bf16Operators::out(ConstElements from, Elements to, std::int64_t count) {
  launch("convert", [&] {
    return table().convert(stream(), from.data, TROUPE_CUDA_BF16, to.fp32(), TROUPE_CUDA_F32,
                           count);
  });
}

void Bf16Operators::out_rows(ConstElements from, Elements to, std::int64_t stride,
                             std::int64_t rows, std::int64_t width) {
  const std::int64_t count = extent(rows, stride, width);
  auto* all = reinterpret_cast<float*>(take(count * 4));
  out(from, all, count);
  copy_rows(all, stride, to, stride, rows, width);
}

void Bf16Operators::upload(const void* host, void* device, std::size_t bytes) {
  gpu_.operators->upload(host, device, bytes);
}

void Bf16Operators::download(const void* device, void* host, std::size_t bytes) {
  gpu_.operators->download(device, host, bytes);
}

void Bf16Operators::copy_rows(ConstElements from, std::int64_t from_stride, Elements to,
                              std::int64_t to_stride, std::int64_t rows, std::int64_t width) {
  run([&](Operators& device) { device.copy_rows(from, from_stride, to, to_stride, rows, width); });
}

void Bf16Operators::gemm(const train::Gemm& g) {
  const auto operand = [&](const void* data, DType type, std::int64_t count) {
    return type == DType::kBF16 ? data : in(static_cast<const float*>(data), count).data;
  };
  train::Gemm bf16 = g;
  bf16.a = operand(g.a, g.a_type,
                   g.transpose_a ? extent(g.k, g.a_stride, g.m) : extent(g.m, g.a_stride, g.k));
  bf16.b = operand(g.b, g.b_type,
                   g.transpose_b ? extent(g.n, g.b_stride, g.k) : extent(g.k, g.b_stride, g.n));
  bf16.c = in(g.c, extent(g.m, g.c_stride, g.n));
  bf16.a_type = bf16.b_type = DType::kBF16;
  bf16.arithmetic = train::Arithmetic::kBf16;
  run([&](Operators& device) { device.gemm(bf16); });
  out_rows(bf16.c, g.c, g.c_stride, g.m, g.n);
}

void Bf16Operators::zero(Elements x, std::int64_t count) { gpu_.operators->zero(x, count); }

void Bf16Operators::add(ConstElements a, ConstElements b, Elements sum, std::int64_t count) {
  const Elements left = in(a, count), right = in(b, count), to = room(count);
  run([&](Operators& device) { device.add(left, right, to, count); });
  out(to, sum, count);
}

void Bf16Operators::dropout(const train::Dropout& dropout, ConstElements x, ConstElements residual,
                            Elements result, std::int64_t rows, std::int64_t width) {
  const std::int64_t count = rows * width;
  const Elements from = in(x, count), to = room(count);
  const Elements added = residual ? in(residual, count) : Elements();
  run([&](Operators& device) { device.dropout(dropout, from, added, to, rows, width); });
  out(to, result, count);
}

void Bf16Operators::rms_norm_forward(ConstElements x, const float* weight, Elements y, float* rstd,
                                     std::int64_t rows, std::int64_t width, float eps) {
  const Elements from = in(x, rows * width), to = room(rows * width);
  run([&](Operators& device) {
    device.rms_norm_forward(from, weight, to, rstd, rows, width, eps);
  });
  out(to, y, rows * width);
}

void Bf16Operators::residual_rms_norm_forward(ConstElements x, ConstElements delta,
                                              const float* weight, Elements sum, Elements y,
                                              float* rstd, std::int64_t rows, std::int64_t width,
                                              float eps) {
  const std::int64_t count = rows * width;
  const Elements left = in(x, count), right = in(delta, count), total = room(count),
                 to = room(count);
  run([&](Operators& device) {
    device.residual_rms_norm_forward(left, right, weight, total, to, rstd, rows, width, eps);
  });
  out(total, sum, count);
  out(to, y, count);
}

void Bf16Operators::rms_norm_apply(ConstElements x, const float* weight, const float* rstd,
                                   Elements y, std::int64_t rows, std::int64_t width) {
  const Elements from = in(x, rows * width), to = room(rows * width);
  run([&](Operators& device) { device.rms_norm_apply(from, weight, rstd, to, rows, width); });
  out(to, y, rows * width);
}

void Bf16Operators::rms_norm_backward(ConstElements dy, ConstElements x, const float* weight,
                                      const float* rstd, Elements dx, float* dweight,
                                      std::int64_t rows, std::int64_t width) {
  const std::int64_t count = rows * width;
  const Elements gradient = in(dy, count), from = in(x, count), to = in(dx, count);
  run([&](Operators& device) {
    device.rms_norm_backward(gradient, from, weight, rstd, to, dweight, rows, width);
  });
  out(to, dx, count);
}

void Bf16Operators::layer_norm_forward(ConstElements x, const float* weight, const float* bias,
                                       Elements y, float* mean, float* rstd, std::int64_t rows,
                                       std::int64_t width, float eps) {
  const Elements from = in(x, rows * width), to = room(rows * width);
  run([&](Operators& device) {
    device.layer_norm_forward(from, weight, bias, to, mean, rstd, rows, width, eps);
  });
  out(to, y, rows * width);
}

void Bf16Operators::layer_norm_apply(ConstElements x, const float* weight, const float* bias,
                                     const float* mean, const float* rstd, Elements y,
                                     std::int64_t rows, std::int64_t width) {
  const Elements from = in(x, rows * width), to = room(rows * width);
  run([&](Operators& device) {
    device.layer_norm_apply(from, weight, bias, mean, rstd, to, rows, width);
  });
  out(to, y, rows * width);
}

void Bf16Operators::layer_norm_backward(ConstElements dy, ConstElements x, const float* weight,
                                        const float* mean, const float* rstd, Elements dx,
                                        float* dweight, float* dbias, std::int64_t rows,
                                        std::int64_t width) {
  const std::int64_t count = rows * width;
  const Elements gradient = in(dy, count), from = in(x, count), to = in(dx, count);
  run([&](Operators& device) {
    device.layer_norm_backward(gradient, from, weight, mean, rstd, to, dweight, dbias, rows, width);
  });
  out(to, dx, count);
}

void Bf16Operators::head_norm_forward(ConstElements x, std::int64_t x_stride, const float* weight,
                                      Elements y, std::int64_t y_stride, float* rstd,
                                      std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                                      float eps) {
  const std::int64_t width = heads * head_dim;
  const Elements from = in(x, extent(rows, x_stride, width));
  const Elements to = x.data == y.data ? from : in(y, extent(rows, y_stride, width));
  run([&](Operators& device) {
    device.head_norm_forward(from, x_stride, weight, to, y_stride, rstd, rows, heads, head_dim,
                             eps);
  });
  out_rows(to, y, y_stride, rows, width);
}

void Bf16Operators::head_norm_backward(Elements dy, std::int64_t stride, ConstElements x,
                                       std::int64_t x_stride, const float* weight,
                                       const float* rstd, float* dweight, std::int64_t rows,
                                       std::int64_t heads, std::int64_t head_dim) {
  const std::int64_t width = heads * head_dim;
  const Elements gradient = in(dy, extent(rows, stride, width));
  const Elements from = in(x, extent(rows, x_stride, width));
  run([&](Operators& device) {
    device.head_norm_backward(gradient, stride, from, x_stride, weight, rstd, dweight, rows, heads,
                              head_dim);
  });
  out_rows(gradient, dy, stride, rows, width);
}

void Bf16Operators::add_bias(Elements y, std::int64_t stride, const float* bias, std::int64_t rows,
                             std::int64_t width) {
  const Elements to = in(y, extent(rows, stride, width));
  run([&](Operators& device) { device.add_bias(to, stride, bias, rows, width); });
  out_rows(to, y, stride, rows, width);
}

void Bf16Operators::bias_backward(ConstElements dy, std::int64_t stride, float* dbias,
                                  std::int64_t rows, std::int64_t width) {
  const Elements gradient = in(dy, extent(rows, stride, width));
  run([&](Operators& device) { device.bias_backward(gradient, stride, dbias, rows, width); });
}

void Bf16Operators::rope(Elements x, std::int64_t stride, const std::int32_t* positions,
                         const float* cosine, const float* sine, std::int64_t rows,
                         std::int64_t heads, std::int64_t head_dim,
                         train::RopeDirection direction) {
  const Elements to = in(x, extent(rows, stride, heads * head_dim));
  run([&](Operators& device) {
    device.rope(to, stride, positions, cosine, sine, rows, heads, head_dim, direction);
  });
  out_rows(to, x, stride, rows, heads * head_dim);
}

namespace {

struct Counts {
  explicit Counts(const train::AttentionShape& s)
      : tokens(s.batch * s.query_length),
        query_width(s.query_heads * s.head_dim),
        key_width(s.key_heads * s.head_dim),
        queries(extent(tokens, s.query_stride, query_width)),
        keys((s.batch - 1) * s.key_batch_stride + extent(s.key_length, s.key_stride, key_width)),
        outputs(tokens * query_width) {}
  std::int64_t tokens, query_width, key_width, queries, keys, outputs;
};

}  // namespace

void Bf16Operators::attention_forward(const train::AttentionShape& shape, ConstElements q,
                                      ConstElements k, ConstElements v, Elements result,
                                      float* log_sum_exp) {
  const Counts n(shape);
  const TroupeCudaAttention given = train::table_attention(shape, TROUPE_CUDA_BF16);
  const Elements queries = in(q, n.queries), keys = in(k, n.keys), values = in(v, n.keys),
                 to = room(n.outputs);
  const TroupeCudaDropout drop = train::table_dropout(shape.dropout);
  launch("attention_forward", [&] {
    if (shape.dropout)
      return table().attention_dropout_forward(stream(), &given, &drop, queries.data, keys.data,
                                               values.data, to.data, log_sum_exp);
    return table().attention_forward(stream(), &given, queries.data, keys.data, values.data,
                                     to.data, log_sum_exp);
  });
  out(to, result, n.outputs);
}

void Bf16Operators::attention_backward(const train::AttentionShape& shape, ConstElements q,
                                       ConstElements k, ConstElements v, ConstElements result,
                                       const float* log_sum_exp, ConstElements dout, Elements dq,
                                       Elements dk, Elements dv) {
  const Counts n(shape);
  const TroupeCudaAttention given = train::table_attention(shape, TROUPE_CUDA_BF16);
  const Elements queries = in(q, n.queries), keys = in(k, n.keys), values = in(v, n.keys),
                 outputs = in(result, n.outputs), gradient = in(dout, n.outputs);
  const Elements query_gradient = in(dq, n.queries), key_gradient = in(dk, n.keys),
                 value_gradient = in(dv, n.keys);
  void* scratch = take(table().attention_scratch_bytes(&given));
  const TroupeCudaDropout drop = train::table_dropout(shape.dropout);
  launch("attention_backward", [&] {
    if (shape.dropout)
      return table().attention_dropout_backward(
          stream(), &given, &drop, queries.data, keys.data, values.data, outputs.data, log_sum_exp,
          gradient.data, query_gradient.data, key_gradient.data, value_gradient.data, scratch);
    return table().attention_backward(stream(), &given, queries.data, keys.data, values.data,
                                      outputs.data, log_sum_exp, gradient.data, query_gradient.data,
                                      key_gradient.data, value_gradient.data, scratch);
  });
  out_rows(query_gradient, dq, shape.query_stride, n.tokens, n.query_width);
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    const std::int64_t at = batch * shape.key_batch_stride;
    out_rows(key_gradient + at, dk + at, shape.key_stride, shape.key_length, n.key_width);
    out_rows(value_gradient + at, dv + at, shape.key_stride, shape.key_length, n.key_width);
  }
}

void Bf16Operators::swiglu_forward(ConstElements gate_up, Elements act, std::int64_t rows,
                                   std::int64_t width) {
  const Elements from = in(gate_up, 2 * rows * width), to = room(rows * width);
  run([&](Operators& device) { device.swiglu_forward(from, to, rows, width); });
  out(to, act, rows * width);
}

void Bf16Operators::swiglu_backward(Elements gate_up, ConstElements dact, Elements act,
                                    std::int64_t rows, std::int64_t width) {
  const Elements both = in(gate_up, 2 * rows * width), gradient = in(dact, rows * width);
  const Elements again = !act ? Elements() : act.data == dact.data ? gradient : room(rows * width);
  run([&](Operators& device) { device.swiglu_backward(both, gradient, again, rows, width); });
  out(both, gate_up, 2 * rows * width);
  if (act) out(again, act, rows * width);
}

void Bf16Operators::gelu_forward(ConstElements x, Elements act, std::int64_t count) {
  const Elements from = in(x, count), to = room(count);
  run([&](Operators& device) { device.gelu_forward(from, to, count); });
  out(to, act, count);
}

void Bf16Operators::gelu_backward(Elements x, ConstElements dact, Elements act,
                                  std::int64_t count) {
  const Elements both = in(x, count), gradient = in(dact, count);
  const Elements again = !act ? Elements() : act.data == dact.data ? gradient : room(count);
  run([&](Operators& device) { device.gelu_backward(both, gradient, again, count); });
  out(both, x, count);
  if (act) out(again, act, count);
}

void Bf16Operators::embedding_forward(const std::int32_t* ids, const void* rows_of,
                                      DType table_type, Elements to, std::int64_t rows,
                                      std::int64_t width) {
  const Elements found = room(rows * width);
  run([&](Operators& device) {
    device.embedding_forward(ids, rows_of, table_type, found, rows, width);
  });
  out(found, to, rows * width);
}

void Bf16Operators::embedding_backward(const std::int32_t* ids, ConstElements dout, float* dweight,
                                       std::int64_t rows, std::int64_t width) {
  const Elements gradient = in(dout, rows * width);
  run([&](Operators& device) { device.embedding_backward(ids, gradient, dweight, rows, width); });
}

// Logits are fp32 in either case.
void Bf16Operators::cross_entropy(float* logits, const std::int32_t* labels, float* losses,
                                  float scale, bool gradient, std::int64_t rows,
                                  std::int64_t classes) {
  gpu_.operators->cross_entropy(logits, labels, losses, scale, gradient, rows, classes);
}

void Bf16Operators::cross_entropy_bf16(float* logits, const std::int32_t* labels, float* losses,
                                       float scale, std::uint16_t* gradient, std::int64_t rows,
                                       std::int64_t classes) {
  gpu_.operators->cross_entropy_bf16(logits, labels, losses, scale, gradient, rows, classes);
}

}  // namespace troupe::tools::gpu

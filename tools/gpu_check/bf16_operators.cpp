#include "tools/gpu_check/bf16_operators.h"

namespace troupe::tools::gpu {
namespace {

constexpr std::int32_t kType = TROUPE_CUDA_BF16;

std::int64_t extent(std::int64_t rows, std::int64_t stride, std::int64_t width) {
  return (rows - 1) * stride + width;
}

}  // namespace

Status Bf16Operators::failure() const {
  return failure_.ok() ? gpu_.operators->failure() : failure_;
}

void Bf16Operators::run(const char* name, const std::function<int()>& launch) {
  if (!failure().ok()) return;
  failure_ = gpu_.device->status(launch(), name);
}

std::byte* Bf16Operators::take(std::int64_t bytes) {
  const Result<std::byte*> memory = gpu_.take(bytes);
  if (memory.ok()) return *memory;
  if (failure_.ok()) failure_ = memory.status();
  return nullptr;
}

void* Bf16Operators::in(const float* from, std::int64_t count) {
  void* to = room(count);
  run("convert", [&] {
    return table().convert(stream(), from, TROUPE_CUDA_F32, to, TROUPE_CUDA_BF16, count);
  });
  return to;
}

void Bf16Operators::out(const void* from, float* to, std::int64_t count) {
  run("convert", [&] {
    return table().convert(stream(), from, TROUPE_CUDA_BF16, to, TROUPE_CUDA_F32, count);
  });
}

void Bf16Operators::out_rows(const void* from, float* to, std::int64_t stride, std::int64_t rows,
                             std::int64_t width) {
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

void Bf16Operators::copy_rows(const float* from, std::int64_t from_stride, float* to,
                              std::int64_t to_stride, std::int64_t rows, std::int64_t width) {
  run("copy_rows", [&] {
    return table().copy_rows(stream(), from, from_stride * 4, to, to_stride * 4, rows, width * 4);
  });
}

void Bf16Operators::gemm(const train::Gemm& g) {
  const auto operand = [&](const void* data, train::DType type, std::int64_t count) {
    return type == train::DType::kBF16 ? data : in(static_cast<const float*>(data), count);
  };
  const void* a = operand(
      g.a, g.a_type, g.transpose_a ? extent(g.k, g.a_stride, g.m) : extent(g.m, g.a_stride, g.k));
  const void* b = operand(
      g.b, g.b_type, g.transpose_b ? extent(g.n, g.b_stride, g.k) : extent(g.k, g.b_stride, g.n));
  void* c = in(g.c, extent(g.m, g.c_stride, g.n));
  const TroupeCudaGemm key{.m = g.m,
                           .n = g.n,
                           .k = g.k,
                           .a_stride = g.a_stride,
                           .b_stride = g.b_stride,
                           .c_stride = g.c_stride,
                           .a_type = kType,
                           .b_type = kType,
                           .c_type = kType,
                           .transpose_a = g.transpose_a,
                           .transpose_b = g.transpose_b,
                           .accumulate = g.accumulate,
                           .arithmetic = TROUPE_CUDA_COMPUTE_BF16,
                           .alignment_bytes = 16};
  const auto algorithm = gpu_.algorithms->choose(key);
  if (!algorithm.ok()) {
    if (failure_.ok()) failure_ = algorithm.status();
    return;
  }
  run("gemm", [&] {
    return table().gemm(stream(), &key, &*algorithm, a, b, c, gpu_.workspace,
                        gpu_.algorithms->workspace_bytes());
  });
  out_rows(c, g.c, g.c_stride, g.m, g.n);
}

void Bf16Operators::zero(float* x, std::int64_t count) { gpu_.operators->zero(x, count); }

void Bf16Operators::add(const float* a, const float* b, float* sum, std::int64_t count) {
  void *left = in(a, count), *right = in(b, count), *to = room(count);
  run("add", [&] { return table().add(stream(), kType, left, right, to, count); });
  out(to, sum, count);
}

void Bf16Operators::rms_norm_forward(const float* x, const float* weight, float* y, float* rstd,
                                     std::int64_t rows, std::int64_t width, float eps) {
  void *from = in(x, rows * width), *to = room(rows * width);
  run("rms_norm_forward", [&] {
    return table().rms_norm_forward(stream(), kType, from, weight, to, rstd, rows, width, eps);
  });
  out(to, y, rows * width);
}

void Bf16Operators::residual_rms_norm_forward(const float* x, const float* delta,
                                              const float* weight, float* sum, float* y,
                                              float* rstd, std::int64_t rows, std::int64_t width,
                                              float eps) {
  const std::int64_t count = rows * width;
  void *left = in(x, count), *right = in(delta, count), *total = room(count), *to = room(count);
  run("residual_rms_norm_forward", [&] {
    return table().residual_rms_norm_forward(stream(), kType, left, right, weight, total, to, rstd,
                                             rows, width, eps);
  });
  out(total, sum, count);
  out(to, y, count);
}

void Bf16Operators::rms_norm_apply(const float* x, const float* weight, const float* rstd, float* y,
                                   std::int64_t rows, std::int64_t width) {
  void *from = in(x, rows * width), *to = room(rows * width);
  run("rms_norm_apply",
      [&] { return table().rms_norm_apply(stream(), kType, from, weight, rstd, to, rows, width); });
  out(to, y, rows * width);
}

void Bf16Operators::rms_norm_backward(const float* dy, const float* x, const float* weight,
                                      const float* rstd, float* dx, float* dweight,
                                      std::int64_t rows, std::int64_t width) {
  const std::int64_t count = rows * width;
  void *gradient = in(dy, count), *from = in(x, count), *to = in(dx, count);
  void* scratch = take(table().row_sum_scratch_bytes(rows, width));
  run("rms_norm_backward", [&] {
    return table().rms_norm_backward(stream(), kType, gradient, from, weight, rstd, to, dweight,
                                     rows, width, scratch);
  });
  out(to, dx, count);
}

void Bf16Operators::layer_norm_forward(const float* x, const float* weight, const float* bias,
                                       float* y, float* mean, float* rstd, std::int64_t rows,
                                       std::int64_t width, float eps) {
  void *from = in(x, rows * width), *to = room(rows * width);
  run("layer_norm_forward", [&] {
    return table().layer_norm_forward(stream(), kType, from, weight, bias, to, mean, rstd, rows,
                                      width, eps);
  });
  out(to, y, rows * width);
}

void Bf16Operators::layer_norm_apply(const float* x, const float* weight, const float* bias,
                                     const float* mean, const float* rstd, float* y,
                                     std::int64_t rows, std::int64_t width) {
  void *from = in(x, rows * width), *to = room(rows * width);
  run("layer_norm_apply", [&] {
    return table().layer_norm_apply(stream(), kType, from, weight, bias, mean, rstd, to, rows,
                                    width);
  });
  out(to, y, rows * width);
}

void Bf16Operators::layer_norm_backward(const float* dy, const float* x, const float* weight,
                                        const float* mean, const float* rstd, float* dx,
                                        float* dweight, float* dbias, std::int64_t rows,
                                        std::int64_t width) {
  const std::int64_t count = rows * width;
  void *gradient = in(dy, count), *from = in(x, count), *to = in(dx, count);
  void* scratch = take(2 * table().row_sum_scratch_bytes(rows, width));
  run("layer_norm_backward", [&] {
    return table().layer_norm_backward(stream(), kType, gradient, from, weight, mean, rstd, to,
                                       dweight, dbias, rows, width, scratch);
  });
  out(to, dx, count);
}

void Bf16Operators::head_norm_forward(const float* x, std::int64_t x_stride, const float* weight,
                                      float* y, std::int64_t y_stride, float* rstd,
                                      std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                                      float eps) {
  const std::int64_t width = heads * head_dim;
  void* from = in(x, extent(rows, x_stride, width));
  void* to = x == y ? from : in(y, extent(rows, y_stride, width));
  run("head_norm_forward", [&] {
    return table().head_norm_forward(stream(), kType, from, x_stride, weight, to, y_stride, rstd,
                                     rows, heads, head_dim, eps);
  });
  out_rows(to, y, y_stride, rows, width);
}

void Bf16Operators::head_norm_backward(float* dy, std::int64_t stride, const float* x,
                                       std::int64_t x_stride, const float* weight,
                                       const float* rstd, float* dweight, std::int64_t rows,
                                       std::int64_t heads, std::int64_t head_dim) {
  const std::int64_t width = heads * head_dim;
  void* gradient = in(dy, extent(rows, stride, width));
  void* from = in(x, extent(rows, x_stride, width));
  void* scratch = take(table().row_sum_scratch_bytes(rows * heads, head_dim));
  run("head_norm_backward", [&] {
    return table().head_norm_backward(stream(), kType, gradient, stride, from, x_stride, weight,
                                      rstd, dweight, rows, heads, head_dim, scratch);
  });
  out_rows(gradient, dy, stride, rows, width);
}

void Bf16Operators::add_bias(float* y, std::int64_t stride, const float* bias, std::int64_t rows,
                             std::int64_t width) {
  void* to = in(y, extent(rows, stride, width));
  run("add_bias", [&] { return table().add_bias(stream(), kType, to, stride, bias, rows, width); });
  out_rows(to, y, stride, rows, width);
}

void Bf16Operators::bias_backward(const float* dy, std::int64_t stride, float* dbias,
                                  std::int64_t rows, std::int64_t width) {
  void* gradient = in(dy, extent(rows, stride, width));
  void* scratch = take(table().row_sum_scratch_bytes(rows, width));
  run("bias_backward", [&] {
    return table().bias_backward(stream(), kType, gradient, stride, dbias, rows, width, scratch);
  });
}

void Bf16Operators::rope(float* x, std::int64_t stride, const std::int32_t* positions,
                         const float* cosine, const float* sine, std::int64_t rows,
                         std::int64_t heads, std::int64_t head_dim,
                         train::RopeDirection direction) {
  void* to = in(x, extent(rows, stride, heads * head_dim));
  run("rope", [&] {
    return table().rope(stream(), kType, to, stride, positions, cosine, sine, rows, heads, head_dim,
                        direction == train::RopeDirection::kBackward);
  });
  out_rows(to, x, stride, rows, heads * head_dim);
}

namespace {

TroupeCudaAttention attention_of(const train::AttentionShape& s) {
  return {.batch = s.batch,
          .query_length = s.query_length,
          .key_length = s.key_length,
          .query_heads = s.query_heads,
          .key_heads = s.key_heads,
          .head_dim = s.head_dim,
          .query_stride = s.query_stride,
          .key_stride = s.key_stride,
          .key_batch_stride = s.key_batch_stride,
          .scale = s.scale,
          .type = kType,
          .first_key = s.first_key};
}

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

void Bf16Operators::attention_forward(const train::AttentionShape& shape, const float* q,
                                      const float* k, const float* v, float* result,
                                      float* log_sum_exp) {
  const Counts n(shape);
  const TroupeCudaAttention given = attention_of(shape);
  void *queries = in(q, n.queries), *keys = in(k, n.keys), *values = in(v, n.keys),
       *to = room(n.outputs);
  run("attention_forward", [&] {
    return table().attention_forward(stream(), &given, queries, keys, values, to, log_sum_exp);
  });
  out(to, result, n.outputs);
}

void Bf16Operators::attention_backward(const train::AttentionShape& shape, const float* q,
                                       const float* k, const float* v, const float* result,
                                       const float* log_sum_exp, const float* dout, float* dq,
                                       float* dk, float* dv) {
  const Counts n(shape);
  const TroupeCudaAttention given = attention_of(shape);
  void *queries = in(q, n.queries), *keys = in(k, n.keys), *values = in(v, n.keys),
       *outputs = in(result, n.outputs), *gradient = in(dout, n.outputs);
  void *query_gradient = in(dq, n.queries), *key_gradient = in(dk, n.keys),
       *value_gradient = in(dv, n.keys);
  void* scratch = take(table().attention_scratch_bytes(&given));
  run("attention_backward", [&] {
    return table().attention_backward(stream(), &given, queries, keys, values, outputs, log_sum_exp,
                                      gradient, query_gradient, key_gradient, value_gradient,
                                      scratch);
  });
  out_rows(query_gradient, dq, shape.query_stride, n.tokens, n.query_width);
  for (std::int64_t batch = 0; batch < shape.batch; ++batch) {
    const std::int64_t at = batch * shape.key_batch_stride;
    const auto part = [&](void* all) { return static_cast<std::uint16_t*>(all) + at; };
    out_rows(part(key_gradient), dk + at, shape.key_stride, shape.key_length, n.key_width);
    out_rows(part(value_gradient), dv + at, shape.key_stride, shape.key_length, n.key_width);
  }
}

void Bf16Operators::swiglu_forward(const float* gate_up, float* act, std::int64_t rows,
                                   std::int64_t width) {
  void *from = in(gate_up, 2 * rows * width), *to = room(rows * width);
  run("swiglu_forward",
      [&] { return table().swiglu_forward(stream(), kType, from, to, rows, width); });
  out(to, act, rows * width);
}

void Bf16Operators::swiglu_backward(float* gate_up, const float* dact, float* act,
                                    std::int64_t rows, std::int64_t width) {
  void *both = in(gate_up, 2 * rows * width), *gradient = in(dact, rows * width);
  void* again = !act ? nullptr : act == dact ? gradient : room(rows * width);
  run("swiglu_backward",
      [&] { return table().swiglu_backward(stream(), kType, both, gradient, again, rows, width); });
  out(both, gate_up, 2 * rows * width);
  if (act) out(again, act, rows * width);
}

void Bf16Operators::gelu_forward(const float* x, float* act, std::int64_t count) {
  void *from = in(x, count), *to = room(count);
  run("gelu_forward", [&] { return table().gelu_forward(stream(), kType, from, to, count); });
  out(to, act, count);
}

void Bf16Operators::gelu_backward(float* x, const float* dact, float* act, std::int64_t count) {
  void *both = in(x, count), *gradient = in(dact, count);
  void* again = !act ? nullptr : act == dact ? gradient : room(count);
  run("gelu_backward",
      [&] { return table().gelu_backward(stream(), kType, both, gradient, again, count); });
  out(both, x, count);
  if (act) out(again, act, count);
}

void Bf16Operators::embedding_forward(const std::int32_t* ids, const void* rows_of,
                                      train::DType table_type, float* to, std::int64_t rows,
                                      std::int64_t width) {
  void* found = room(rows * width);
  run("embedding_forward", [&] {
    return table().embedding_forward(
        stream(), ids, rows_of,
        table_type == train::DType::kBF16 ? TROUPE_CUDA_BF16 : TROUPE_CUDA_F32, found, kType, rows,
        width);
  });
  out(found, to, rows * width);
}

void Bf16Operators::embedding_backward(const std::int32_t* ids, const float* dout, float* dweight,
                                       std::int64_t rows, std::int64_t width) {
  void* gradient = in(dout, rows * width);
  void* scratch = take(table().embedding_scratch_bytes(rows));
  run("embedding_backward", [&] {
    return table().embedding_backward(stream(), kType, ids, gradient, dweight, rows, width,
                                      scratch);
  });
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

#include "tools/gpu_check/bf16_operators.h"

#include <tuple>
#include <utility>
#include <vector>

#include "train/cuda/operators/table_calls.h"

namespace troupe::tools::gpu {
namespace {

using train::ArgumentRole;
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

template <typename... Parameters, typename... Arguments>
void Bf16Operators::call(void (Operators::*function)(Parameters...),
                         const Arguments&... arguments) {
  // What is given twice, since the operator works in place, is one copy.
  std::vector<std::pair<const void*, Elements>> copies;
  const auto given = [&]<typename Argument>(const Argument& argument) {
    if constexpr (!Argument::kIsActivation) {
      return argument.value;
    } else {
      if (!argument.value) return Elements();
      for (const auto& [of, copy] : copies)
        if (of == argument.value.data) return copy;
      const bool is_read =
          Argument::kRole == ArgumentRole::kReads || Argument::kRole == ArgumentRole::kUpdates;
      const Elements copy = is_read || argument.stride != argument.width
                                ? in(argument.value, argument.extent())
                                : room(argument.extent());
      copies.emplace_back(argument.value.data, copy);
      return copy;
    }
  };
  const auto back = [&]<typename Argument>(const Argument& argument, const auto& value) {
    if constexpr (Argument::kIsWritten) {
      if (!argument.value) return;
      if (argument.stride == argument.width)
        out(value, argument.value, argument.extent());
      else
        out_rows(value, argument.value, argument.stride, argument.rows, argument.width);
    }
  };
  // Between braces the order is that of the text.
  const std::tuple values{given(arguments)...};
  std::apply(
      [&](const auto&... value) {
        run([&](Operators& device) { (device.*function)(value...); });
        (back(arguments, value), ...);
      },
      values);
}

#define TROUPE_OPERATOR(name, ...)                           \
  void Bf16Operators::name(TROUPE_PARAMETERS(__VA_ARGS__)) { \
    call(&Operators::name, TROUPE_DESCRIBED(__VA_ARGS__));   \
  }
#define TROUPE_TRANSLATED_OPERATOR(name, ...)
#include "train/tensor/operators.def"

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

void Bf16Operators::quantized_values(const QuantizedMatrix& matrix, std::int64_t first,
                                     float* values, std::int64_t count) {
  gpu_.operators->quantized_values(matrix, first, values, count);
}

void Bf16Operators::zero(Elements x, std::int64_t count) { gpu_.operators->zero(x, count); }

void Bf16Operators::dropout(const train::Dropout& dropout, ConstElements x, ConstElements residual,
                            Elements result, std::int64_t rows, std::int64_t width) {
  const std::int64_t count = rows * width;
  const Elements from = in(x, count), to = room(count);
  const Elements added = residual ? in(residual, count) : Elements();
  run([&](Operators& device) { device.dropout(dropout, from, added, to, rows, width); });
  out(to, result, count);
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

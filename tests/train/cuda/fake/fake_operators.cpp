// The fake's operators: train/cpu's, in the stream. bf16 activations are expanded, computed with in
// fp32 and rounded once.

#include <cstring>
#include <memory>
#include <tuple>
#include <utility>

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

// --- the operators that the table has with the list's own arguments

using train::ArgumentRole;
using train::OperatorArgument;

template <typename Argument>
void need(Launch& launch, std::int32_t type, const Argument& argument) {
  if constexpr (Argument::kIsActivation)
    launch.needs(argument.value, argument.extent(), type, argument.name,
                 Argument::kRole == ArgumentRole::kMayWrite);
  else if constexpr (Argument::kRole == ArgumentRole::kFloats)
    launch.floats(argument.value, argument.extent(), argument.name);
  else if constexpr (Argument::kRole == ArgumentRole::kAddsSums)
    launch.floats(argument.value, argument.width, argument.name);
  else if constexpr (Argument::kRole == ArgumentRole::kIntegers)
    launch.needs(argument.value, argument.extent(), TROUPE_CUDA_I32, argument.name);
}

// What train/cpu is given for an argument, as long as it computes.
template <typename Argument>
class Given {
 public:
  Given(std::int32_t, const Argument& argument) : value_(argument.value) {}
  auto value() { return value_; }

 private:
  decltype(Argument::value) value_;
};
template <typename T>
class Given<OperatorArgument<ArgumentRole::kReads, T>> {
 public:
  Given(std::int32_t type, const OperatorArgument<ArgumentRole::kReads, T>& argument)
      : in_(type, argument.value, argument.extent()) {}
  train::ConstElements value() { return in_; }

 private:
  In in_;
};
template <typename Argument>
requires Argument::kIsWritten class Given<Argument> {
 public:
  Given(std::int32_t type, const Argument& argument)
      : out_(type, argument.value, argument.extent()) {}
  train::Elements value() { return out_; }

 private:
  InOut out_;
};

template <typename... Parameters, typename... Arguments, std::size_t... kIndex>
void compute(Operators& cpu, void (Operators::*function)(Parameters...), std::int32_t type,
             std::index_sequence<kIndex...>, const Arguments&... arguments) {
  std::tuple<std::unique_ptr<Given<Arguments>>...> given{
      std::make_unique<Given<Arguments>>(type, arguments)...};
  (cpu.*function)(static_cast<Parameters>(std::get<kIndex>(given)->value())...);
}

template <typename... Parameters, typename... Arguments>
int enqueue(TroupeCudaStream* stream, std::int32_t type, const char* name,
            void (Operators::*function)(Parameters...), void* scratch,
            const Arguments&... arguments) {
  Launch launch(stream, name);
  launch.activations_of(type);
  (need(launch, type, arguments), ...);
  std::int64_t bytes = 0;
  const auto count = [&]<typename Argument>(const Argument& argument) {
    if constexpr (Argument::kRole == ArgumentRole::kAddsSums)
      bytes += cuda::row_sum_scratch_size(argument.rows, argument.width);
  };
  (count(arguments), ...);
  if (bytes > 0) launch.scratch(scratch, bytes);
  return launch.run([=](Operators& cpu) {
    compute(cpu, function, type, std::index_sequence_for<Arguments...>(), arguments...);
  });
}

#define TROUPE_OPERATOR(name, ...)                                                                 \
  int name(TroupeCudaStream* stream, std::int32_t type, TROUPE_C_PARAMETERS(__VA_ARGS__)) {        \
    return enqueue(stream, type, #name, &Operators::name, nullptr, TROUPE_DESCRIBED(__VA_ARGS__)); \
  }
#define TROUPE_SUMMING_OPERATOR(name, ...)                                                         \
  int name(TroupeCudaStream* stream, std::int32_t type, TROUPE_C_PARAMETERS(__VA_ARGS__),          \
           void* scratch) {                                                                        \
    return enqueue(stream, type, #name, &Operators::name, scratch, TROUPE_DESCRIBED(__VA_ARGS__)); \
  }
#define TROUPE_TRANSLATED_OPERATOR(name, ...)
#include "train/tensor/operators.def"

// --- the others

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

int residual_rms_norm_in_two(TroupeCudaStream* stream, std::int32_t type, const void* x,
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

}  // namespace

void fill_operators(TroupeCudaTable& table) {
#define TROUPE_OPERATOR(name, ...) table.name = name;
#define TROUPE_TRANSLATED_OPERATOR(name, ...)
#include "train/tensor/operators.def"
  table.residual_rms_norm_forward = residual_rms_norm_in_two;
  table.convert = convert;
  table.round_to_bf16 = round_to_bf16;
  table.attention_forward = attention_forward;
  table.attention_backward = attention_backward;
  table.dropout = dropout;
  table.attention_dropout_forward = attention_dropout_forward;
  table.attention_dropout_backward = attention_dropout_backward;
  table.embedding_forward = embedding_forward;
  table.embedding_backward = embedding_backward;
  table.cross_entropy = cross_entropy;
}

}  // namespace troupe::tests::fake

#include "train/cpu/cpu_operators.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "runtime/base/check.h"
#include "train/cpu/attention.h"
#include "train/cpu/bf16_attention.h"
#include "train/cpu/kernels.h"
#include "train/cpu/operator_class.h"
#include "train/tensor/convert.h"
#include "train/tensor/vectorize.h"

namespace troupe::train {
namespace {

TROUPE_VECTORIZED
void add_number_to(const float* x, float addend, float* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = x[i] + addend;
}

// out may be a or b.
TROUPE_VECTORIZED
void multiply(const float* a, const float* b, float* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = a[i] * b[i];
}

// A row's gradient in pieces, whose intermediate results stay in the nearest cache.
void geglu_backward_row(float* gate, float* up, const float* dact, float* act, std::int64_t width) {
  constexpr std::int64_t kPiece = 512;
  float dgelu[kPiece], gelu[kPiece];
  for (std::int64_t at = 0; at < width; at += kPiece) {
    const std::int64_t count = std::min(kPiece, width - at);
    multiply(dact + at, up + at, dgelu, count);
    kernels::gelu_backward(gate + at, dgelu, gelu, count);
    // act may be dact, which is read before; dgelu has served.
    multiply(gelu, up + at, dgelu, count);
    multiply(dact + at, gelu, up + at, count);
    if (act) std::copy_n(dgelu, count, act + at);
  }
}

}  // namespace

// Of no bytes the addresses may be null, which memcpy is not given.
void CpuOperators::upload(const void* host, void* device, std::size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
}

void CpuOperators::download(const void* device, void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}

void CpuOperators::quantized_values(const QuantizedMatrix& matrix, std::int64_t first,
                                    float* values, std::int64_t count) {
  for_ranges(count, kElementsPerTile, [&](std::int64_t begin, std::int64_t n) {
    dequantize(matrix, first + begin, std::span(values + begin, static_cast<std::size_t>(n)));
  });
}

void CpuOperators::copy_rows(ConstElements from, std::int64_t from_stride, Elements to,
                             std::int64_t to_stride, std::int64_t rows, std::int64_t width) {
  for_rows(rows, width,
           [&, from = from.fp32(), to = to.fp32()](std::int64_t begin, std::int64_t n) {
             for (std::int64_t row = begin; row < begin + n; ++row)
               std::memcpy(to + row * to_stride, from + row * from_stride,
                           static_cast<std::size_t>(width) * sizeof(float));
           });
}

void CpuOperators::gemm(const Gemm& gemm) { gemms_.run(arena_, gemm); }

void CpuOperators::zero(Elements x, std::int64_t count) {
  // Ranges that no cache holds are cleared past it, without being read.
  const std::int64_t per_thread = ceil_div(count, arena_.threads());
  for_ranges(count, std::max(kElementsPerTile, per_thread),
             [&, x = x.fp32()](std::int64_t begin, std::int64_t n) {
               std::memset(x + begin, 0, static_cast<std::size_t>(n) * sizeof(float));
             });
}

void CpuOperators::add(ConstElements a, ConstElements b, Elements out, std::int64_t count) {
  for_elements(
      count, [&, a = a.fp32(), b = b.fp32(), out = out.fp32()](std::int64_t begin, std::int64_t n) {
        kernels::add(a + begin, b + begin, out + begin, n);
      });
}

void CpuOperators::add_number(ConstElements x, float addend, Elements out, std::int64_t count) {
  for_elements(count, [&, x = x.fp32(), out = out.fp32()](std::int64_t begin, std::int64_t n) {
    add_number_to(x + begin, addend, out + begin, n);
  });
}

void CpuOperators::scale(Elements x, std::int64_t stride, float factor, std::int64_t rows,
                         std::int64_t width) {
  for_rows(rows, width, [&, x = x.fp32()](std::int64_t begin, std::int64_t n) {
    for (std::int64_t row = begin; row < begin + n; ++row)
      kernels::scale(x + row * stride, factor, width);
  });
}

void CpuOperators::dropout(const Dropout& dropout, ConstElements x, ConstElements residual,
                           Elements out, std::int64_t rows, std::int64_t width) {
  TROUPE_CHECK(dropout, "a dropout that leaves nothing out");
  for_rows(rows, width,
           [&, x = x.fp32(), residual = residual.fp32(), out = out.fp32()](std::int64_t begin,
                                                                           std::int64_t n) {
             for (std::int64_t row = begin; row < begin + n; ++row) {
               const std::int64_t at = row * width;
               kernels::dropout_row(x + at, residual ? residual + at : nullptr, out + at, width, 0,
                                    kernels::dropout_row_of(dropout, row));
             }
           });
}

void CpuOperators::rms_norm_forward(ConstElements x, const float* weight, Elements y, float* rstd,
                                    std::int64_t rows, std::int64_t width, float eps) {
  for_rows(rows, width, [&, x = x.fp32(), y = y.fp32()](std::int64_t begin, std::int64_t n) {
    kernels::rms_norm_rows(x + begin * width, weight, y + begin * width, rstd + begin, n, width,
                           eps);
  });
}

void CpuOperators::residual_rms_norm_forward(ConstElements x, ConstElements delta,
                                             const float* weight, Elements sum, Elements y,
                                             float* rstd, std::int64_t rows, std::int64_t width,
                                             float eps) {
  for_rows(rows, width,
           [&, x = x.fp32(), delta = delta.fp32(), sum = sum.fp32(), y = y.fp32()](
               std::int64_t begin, std::int64_t n) {
             const std::int64_t at = begin * width;
             kernels::residual_rms_norm_rows(x + at, delta + at, weight, sum + at, y + at,
                                             rstd + begin, n, width, eps);
           });
}

void CpuOperators::rms_norm_apply(ConstElements x, const float* weight, const float* rstd,
                                  Elements y, std::int64_t rows, std::int64_t width) {
  for_rows(rows, width, [&, x = x.fp32(), y = y.fp32()](std::int64_t begin, std::int64_t n) {
    kernels::rms_norm_apply_rows(x + begin * width, weight, rstd + begin, y + begin * width, n,
                                 width);
  });
}

void CpuOperators::rms_norm_backward(ConstElements dy, ConstElements x, const float* weight,
                                     const float* rstd, Elements dx, float* dweight,
                                     std::int64_t rows, std::int64_t width) {
  if (dweight)
    for_columns(width, [&, dy = dy.fp32(), x = x.fp32()](std::int64_t begin, std::int64_t n) {
      kernels::rms_norm_backward_columns(dy + begin, x + begin, rstd, dweight + begin, rows, width,
                                         n);
    });
  for_rows(rows, width,
           [&, dy = dy.fp32(), x = x.fp32(), dx = dx.fp32()](std::int64_t begin, std::int64_t n) {
             const std::int64_t at = begin * width;
             kernels::rms_norm_backward_rows(dy + at, x + at, weight, rstd + begin, dx + at, n,
                                             width);
           });
}

void CpuOperators::layer_norm_forward(ConstElements x, const float* weight, const float* bias,
                                      Elements y, float* mean, float* rstd, std::int64_t rows,
                                      std::int64_t width, float eps) {
  for_rows(rows, width, [&, x = x.fp32(), y = y.fp32()](std::int64_t begin, std::int64_t n) {
    kernels::layer_norm_rows(x + begin * width, weight, bias, y + begin * width, mean + begin,
                             rstd + begin, n, width, eps);
  });
}

void CpuOperators::layer_norm_apply(ConstElements x, const float* weight, const float* bias,
                                    const float* mean, const float* rstd, Elements y,
                                    std::int64_t rows, std::int64_t width) {
  for_rows(rows, width, [&, x = x.fp32(), y = y.fp32()](std::int64_t begin, std::int64_t n) {
    kernels::layer_norm_apply_rows(x + begin * width, weight, bias, mean + begin, rstd + begin,
                                   y + begin * width, n, width);
  });
}

void CpuOperators::layer_norm_backward(ConstElements dy, ConstElements x, const float* weight,
                                       const float* mean, const float* rstd, Elements dx,
                                       float* dweight, float* dbias, std::int64_t rows,
                                       std::int64_t width) {
  if (dweight)
    for_columns(width, [&, dy = dy.fp32(), x = x.fp32()](std::int64_t begin, std::int64_t n) {
      kernels::layer_norm_backward_columns(dy + begin, x + begin, mean, rstd, dweight + begin,
                                           dbias + begin, rows, width, n);
    });
  for_rows(rows, width,
           [&, dy = dy.fp32(), x = x.fp32(), dx = dx.fp32()](std::int64_t begin, std::int64_t n) {
             const std::int64_t at = begin * width;
             kernels::layer_norm_backward_rows(dy + at, x + at, weight, mean + begin, rstd + begin,
                                               dx + at, n, width);
           });
}

void CpuOperators::head_norm_forward(ConstElements x, std::int64_t x_stride, const float* weight,
                                     Elements y, std::int64_t y_stride, float* rstd,
                                     std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                                     float eps) {
  for_rows(rows, heads * head_dim,
           [&, x = x.fp32(), y = y.fp32()](std::int64_t begin, std::int64_t n) {
             kernels::head_norm_rows(x + begin * x_stride, x_stride, weight, y + begin * y_stride,
                                     y_stride, rstd + begin * heads, n, heads, head_dim, eps);
           });
}

void CpuOperators::head_norm_backward(Elements dy, std::int64_t stride, ConstElements x,
                                      std::int64_t x_stride, const float* weight, const float* rstd,
                                      float* dweight, std::int64_t rows, std::int64_t heads,
                                      std::int64_t head_dim) {
  if (dweight)
    for_columns(head_dim, [&, dy = dy.fp32(), x = x.fp32()](std::int64_t begin, std::int64_t n) {
      kernels::head_norm_backward_columns(dy + begin, stride, x + begin, x_stride, rstd,
                                          dweight + begin, rows, heads, head_dim, n);
    });
  for_rows(rows, heads * head_dim,
           [&, dy = dy.fp32(), x = x.fp32()](std::int64_t begin, std::int64_t n) {
             kernels::head_norm_backward_rows(dy + begin * stride, stride, x + begin * x_stride,
                                              x_stride, weight, rstd + begin * heads, n, heads,
                                              head_dim);
           });
}

void CpuOperators::add_bias(Elements y, std::int64_t stride, const float* bias, std::int64_t rows,
                            std::int64_t width) {
  for_rows(rows, width, [&, y = y.fp32()](std::int64_t begin, std::int64_t n) {
    for (std::int64_t row = begin; row < begin + n; ++row)
      kernels::add(y + row * stride, bias, y + row * stride, width);
  });
}

void CpuOperators::bias_backward(ConstElements dy, std::int64_t stride, float* dbias,
                                 std::int64_t rows, std::int64_t width) {
  for_columns(width, [&, dy = dy.fp32()](std::int64_t begin, std::int64_t n) {
    kernels::add_column_sums(dy + begin, stride, dbias + begin, rows, n);
  });
}

void CpuOperators::rope(Elements x, std::int64_t stride, const std::int32_t* positions,
                        const float* cosine, const float* sine, std::int64_t rows,
                        std::int64_t heads, std::int64_t head_dim, RopeDirection direction) {
  const float sign = direction == RopeDirection::kForward ? 1.0f : -1.0f;
  for_rows(rows, heads * head_dim, [&, x = x.fp32()](std::int64_t begin, std::int64_t n) {
    for (std::int64_t row = begin; row < begin + n; ++row) {
      // A row's values lie between: the processor does not see the next row coming.
      for (std::int64_t i = 0; i < heads * head_dim; i += kLineElements)
        __builtin_prefetch(x + (row + 1) * stride + i, 1);
      const std::int64_t at = positions[row] * (head_dim / 2);
      kernels::rope_row(x + row * stride, cosine + at, sine + at, heads, head_dim, sign);
    }
  });
}

void CpuOperators::attention_forward(const AttentionShape& shape, ConstElements q, ConstElements k,
                                     ConstElements v, Elements out, float* log_sum_exp) {
  if (gemms_.packs_bf16() && attends_in_bf16(shape))
    return bf16_attention_forward(arena_, workspaces_, shape, q.fp32(), k.fp32(), v.fp32(),
                                  out.fp32(), log_sum_exp);
  train::attention_forward(arena_, workspaces_, shape, q.fp32(), k.fp32(), v.fp32(), out.fp32(),
                           log_sum_exp);
}

void CpuOperators::attention_backward(const AttentionShape& shape, ConstElements q, ConstElements k,
                                      ConstElements v, ConstElements out, const float* log_sum_exp,
                                      ConstElements dout, Elements dq, Elements dk, Elements dv) {
  if (gemms_.packs_bf16() && attends_in_bf16(shape))
    return bf16_attention_backward(arena_, workspaces_, shape, q.fp32(), k.fp32(), v.fp32(),
                                   out.fp32(), log_sum_exp, dout.fp32(), dq.fp32(), dk.fp32(),
                                   dv.fp32());
  train::attention_backward(arena_, workspaces_, shape, q.fp32(), k.fp32(), v.fp32(), out.fp32(),
                            log_sum_exp, dout.fp32(), dq.fp32(), dk.fp32(), dv.fp32());
}

void CpuOperators::swiglu_forward(ConstElements gate_up, Elements act, std::int64_t rows,
                                  std::int64_t width) {
  for_rows(rows, width,
           [&, gate_up = gate_up.fp32(), act = act.fp32()](std::int64_t begin, std::int64_t n) {
             kernels::swiglu_rows(gate_up + begin * 2 * width, act + begin * width, n, width);
           });
}

void CpuOperators::swiglu_backward(Elements gate_up, ConstElements dact, Elements act,
                                   std::int64_t rows, std::int64_t width) {
  for_rows(rows, width,
           [&, gate_up = gate_up.fp32(), dact = dact.fp32(), act = act.fp32()](std::int64_t begin,
                                                                               std::int64_t n) {
             kernels::swiglu_backward_rows(gate_up + begin * 2 * width, dact + begin * width,
                                           act ? act + begin * width : nullptr, n, width);
           });
}

void CpuOperators::gelu_forward(ConstElements x, Elements act, std::int64_t count) {
  for_elements(count, [&, x = x.fp32(), act = act.fp32()](std::int64_t begin, std::int64_t n) {
    kernels::gelu(x + begin, act + begin, n);
  });
}

void CpuOperators::gelu_backward(Elements x, ConstElements dact, Elements act, std::int64_t count) {
  for_elements(count, [&, x = x.fp32(), dact = dact.fp32(), act = act.fp32()](std::int64_t begin,
                                                                              std::int64_t n) {
    kernels::gelu_backward(x + begin, dact + begin, act ? act + begin : nullptr, n);
  });
}

void CpuOperators::geglu_forward(ConstElements gate_up, Elements act, std::int64_t rows,
                                 std::int64_t width) {
  for_rows(rows, width,
           [&, gate_up = gate_up.fp32(), act = act.fp32()](std::int64_t begin, std::int64_t n) {
             for (std::int64_t row = begin; row < begin + n; ++row) {
               const float* gate = gate_up + row * 2 * width;
               float* out = act + row * width;
               kernels::gelu(gate, out, width);
               multiply(out, gate + width, out, width);
             }
           });
}

void CpuOperators::geglu_backward(Elements gate_up, ConstElements dact, Elements act,
                                  std::int64_t rows, std::int64_t width) {
  for_rows(rows, width,
           [&, gate_up = gate_up.fp32(), dact = dact.fp32(), act = act.fp32()](std::int64_t begin,
                                                                               std::int64_t n) {
             for (std::int64_t row = begin; row < begin + n; ++row) {
               float* gate = gate_up + row * 2 * width;
               geglu_backward_row(gate, gate + width, dact + row * width,
                                  act ? act + row * width : nullptr, width);
             }
           });
}

void CpuOperators::embedding_forward(const std::int32_t* ids, const void* table, DType table_type,
                                     Elements out, std::int64_t rows, std::int64_t width) {
  TROUPE_CHECK(table_type == DType::kF32 || table_type == DType::kBF16);
  for_rows(rows, width, [&, out = out.fp32()](std::int64_t begin, std::int64_t n) {
    for (std::int64_t row = begin; row < begin + n; ++row) {
      const std::int64_t from = ids[row] * width, to = row * width;
      if (table_type == DType::kBF16)
        float_from_bf16(static_cast<const std::uint16_t*>(table) + from, out + to, width);
      else
        std::memcpy(out + to, static_cast<const float*>(table) + from,
                    static_cast<std::size_t>(width) * sizeof(float));
    }
  });
}

void CpuOperators::embedding_backward(const std::int32_t* ids, ConstElements dout, float* dweight,
                                      std::int64_t rows, std::int64_t width) {
  for_columns(width, [&, dout = dout.fp32()](std::int64_t begin, std::int64_t n) {
    kernels::add_rows_by_id(ids, dout + begin, dweight + begin, rows, width, n);
  });
}

void CpuOperators::cross_entropy(float* logits, const std::int32_t* labels, float* losses,
                                 float scale, bool gradient, std::int64_t rows,
                                 std::int64_t classes) {
  for_rows(rows, classes, [&](std::int64_t begin, std::int64_t n) {
    for (std::int64_t row = begin; row < begin + n; ++row)
      losses[row] =
          kernels::cross_entropy_row(logits + row * classes, labels[row], scale, gradient, classes,
                                     logits + std::min(row + 1, rows - 1) * classes);
  });
}

void CpuOperators::cross_entropy_bf16(float* logits, const std::int32_t* labels, float* losses,
                                      float scale, std::uint16_t* gradient, std::int64_t rows,
                                      std::int64_t classes) {
  for_rows(rows, classes, [&](std::int64_t begin, std::int64_t n) {
    for (std::int64_t row = begin; row < begin + n; ++row)
      losses[row] = kernels::cross_entropy_row_bf16(logits + row * classes, labels[row], scale,
                                                    gradient + row * classes, classes,
                                                    logits + std::min(row + 1, rows - 1) * classes);
  });
}

void CpuOperators::weighted_cross_entropy(float* logits, const std::int32_t* labels,
                                          const float* weights, float* losses, float scale,
                                          Elements gradient, std::int64_t rows,
                                          std::int64_t classes) {
  TROUPE_CHECK(!gradient || gradient.type == DType::kBF16);
  auto* bf16 = static_cast<std::uint16_t*>(gradient.data);
  for_rows(rows, classes, [&](std::int64_t begin, std::int64_t n) {
    for (std::int64_t row = begin; row < begin + n; ++row) {
      float* mine = logits + row * classes;
      const float* next = logits + std::min(row + 1, rows - 1) * classes;
      const float weight = scale * weights[row];
      losses[row] =
          bf16 ? kernels::cross_entropy_row_bf16(mine, labels[row], weight, bf16 + row * classes,
                                                 classes, next)
               : kernels::cross_entropy_row(mine, labels[row], weight, true, classes, next);
    }
  });
}

void CpuOperators::entropy_weighted_cross_entropy(float* logits, const std::int32_t* labels,
                                                  float* losses, float scale, std::int64_t top,
                                                  float divisor, float power, Elements gradient,
                                                  std::int64_t rows, std::int64_t classes) {
  TROUPE_CHECK(!gradient || gradient.type == DType::kBF16);
  auto* bf16 = static_cast<std::uint16_t*>(gradient.data);
  for_rows(rows, classes, [&](std::int64_t begin, std::int64_t n) {
    std::vector<float> greatest(static_cast<std::size_t>(std::min(top, classes)));
    for (std::int64_t row = begin; row < begin + n; ++row) {
      float* mine = logits + row * classes;
      const float* next = logits + std::min(row + 1, rows - 1) * classes;
      std::partial_sort_copy(mine, mine + classes, greatest.begin(), greatest.end(),
                             std::greater<>());
      const float weight = std::pow(kernels::entropy_of_softmax(greatest) / divisor, power);
      const float loss =
          bf16 ? kernels::cross_entropy_row_bf16(mine, labels[row], scale * weight,
                                                 bf16 + row * classes, classes, next)
               : kernels::cross_entropy_row(mine, labels[row], scale * weight, true, classes, next);
      losses[row] = loss * weight;
    }
  });
}

void CpuOperators::divergence_cross_entropy(float* logits, const std::int32_t* labels,
                                            float* reference, float* losses, float scale,
                                            float divergence, Elements gradient, std::int64_t rows,
                                            std::int64_t classes) {
  TROUPE_CHECK(!gradient || gradient.type == DType::kBF16);
  auto* bf16 = static_cast<std::uint16_t*>(gradient.data);
  for_rows(rows, classes, [&](std::int64_t begin, std::int64_t n) {
    for (std::int64_t row = begin; row < begin + n; ++row)
      losses[row] = kernels::divergence_cross_entropy_row(
          logits + row * classes, labels[row], reference + row * classes, scale, divergence,
          bf16 ? bf16 + row * classes : nullptr, classes);
  });
}

std::size_t cpu_bf16_scratch_bytes(const Operators& operators, int threads) {
  return GemmEngine::staging_bytes_max(threads, operators.fast_bf16());
}

std::size_t cpu_fp16_scratch_bytes(int threads) {
  return GemmEngine::staging_bytes_max(threads, false);
}

std::int64_t cpu_quantized_scratch_bytes() { return GemmEngine::kDequantizedBytes; }

std::unique_ptr<Operators> make_cpu_operators(Arena& arena, const CpuOptions& options) {
  return std::make_unique<CpuOperators>(arena, options);
}

}  // namespace troupe::train

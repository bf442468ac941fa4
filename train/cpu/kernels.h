#pragma once
// The loops behind CpuOperators, each over a range of rows: private to train/cpu.
//
// Shapes and meanings are those of train/tensor/operators.h.

#include <cstdint>
#include <span>

#include "train/tensor/dropout.h"

namespace troupe::train::kernels {

void rms_norm_rows(const float* x, const float* weight, float* y, float* rstd, std::int64_t rows,
                   std::int64_t width, float eps);
void residual_rms_norm_rows(const float* x, const float* delta, const float* weight, float* sum,
                            float* y, float* rstd, std::int64_t rows, std::int64_t width,
                            float eps);
void rms_norm_apply_rows(const float* x, const float* weight, const float* rstd, float* y,
                         std::int64_t rows, std::int64_t width);
// dx += …, these rows only.
void rms_norm_backward_rows(const float* dy, const float* x, const float* weight, const float* rstd,
                            float* dx, std::int64_t rows, std::int64_t width);
// dweight[0 … columns) += … over all rows; pointers are at the first column of the strip.
void rms_norm_backward_columns(const float* dy, const float* x, const float* rstd, float* dweight,
                               std::int64_t rows, std::int64_t width, std::int64_t columns);

void layer_norm_rows(const float* x, const float* weight, const float* bias, float* y, float* mean,
                     float* rstd, std::int64_t rows, std::int64_t width, float eps);
void layer_norm_apply_rows(const float* x, const float* weight, const float* bias,
                           const float* mean, const float* rstd, float* y, std::int64_t rows,
                           std::int64_t width);
// dx += …, these rows only.
void layer_norm_backward_rows(const float* dy, const float* x, const float* weight,
                              const float* mean, const float* rstd, float* dx, std::int64_t rows,
                              std::int64_t width);
// dweight, dbias[0 … columns) += … over all rows; pointers are at the first column of the strip.
void layer_norm_backward_columns(const float* dy, const float* x, const float* mean,
                                 const float* rstd, float* dweight, float* dbias, std::int64_t rows,
                                 std::int64_t width, std::int64_t columns);

void head_norm_rows(const float* x, std::int64_t x_stride, const float* weight, float* y,
                    std::int64_t y_stride, float* rstd, std::int64_t rows, std::int64_t heads,
                    std::int64_t head_dim, float eps);
// In place of dy, these rows only.
void head_norm_backward_rows(float* dy, std::int64_t stride, const float* x, std::int64_t x_stride,
                             const float* weight, const float* rstd, std::int64_t rows,
                             std::int64_t heads, std::int64_t head_dim);
// dweight[0 … columns) += … over all rows and heads; pointers are at the first column of the strip.
void head_norm_backward_columns(const float* dy, std::int64_t stride, const float* x,
                                std::int64_t x_stride, const float* rstd, float* dweight,
                                std::int64_t rows, std::int64_t heads, std::int64_t head_dim,
                                std::int64_t columns);

void add(const float* a, const float* b, float* out, std::int64_t count);
void scale(float* x, float factor, std::int64_t count);
void rope_row(float* x, const float* cosine, const float* sine, std::int64_t heads,
              std::int64_t head_dim, float sine_sign);
void swiglu_rows(const float* gate_up, float* act, std::int64_t rows, std::int64_t width);
void swiglu_backward_rows(float* gate_up, const float* dact, float* act, std::int64_t rows,
                          std::int64_t width);
void gelu(const float* x, float* act, std::int64_t count);
void gelu_backward(float* x, const float* dact, float* act, std::int64_t count);
// sums[0 … columns) += the rows, in order.
void add_column_sums(const float* x, std::int64_t stride, float* sums, std::int64_t rows,
                     std::int64_t columns);
void add_rows_by_id(const std::int32_t* ids, const float* dout, float* dweight, std::int64_t rows,
                    std::int64_t width, std::int64_t columns);

// −Σ p·ln p of p = softmax(logits).
float entropy_of_softmax(std::span<const float> logits);

// Returns the row's loss; logits become their gradient or are destroyed. next: the row that is
// wanted after this one, fetched meanwhile (with none, the row itself).
float cross_entropy_row(float* logits, std::int32_t label, float scale, bool gradient,
                        std::int64_t classes, const float* next);

// The same loss; the gradient goes to `gradient`, rounded to bf16, logits are destroyed.
float cross_entropy_row_bf16(float* logits, std::int32_t label, float scale,
                             std::uint16_t* gradient, std::int64_t classes, const float* next);

// Operators::divergence_cross_entropy, of one row.
float divergence_cross_entropy_row(float* logits, std::int32_t label, float* reference, float scale,
                                   float divergence, std::uint16_t* gradient, std::int64_t classes);

// scores[0 … count) := exp(scores·scale − max) with zeros outside [first, end); returns log-sum-exp
// and writes 1 / Σ to *inverse_sum.
float softmax_row(float* scores, std::int64_t count, std::int64_t first, std::int64_t end,
                  float scale, float* inverse_sum);
// scores := P = exp(scores·scale − log_sum_exp) inside [first, end), 0 outside, and
// dscores := P·(dscores − delta)·scale.
void softmax_backward_row(float* scores, float* dscores, std::int64_t count, std::int64_t first,
                          std::int64_t end, float scale, float log_sum_exp, float delta);

// Queries of a block of attention: its scores have a column for each and a row for each key, rows
// are kQueryBlock floats apart. Scores of 1,024 keys are 256 KiB and stay in the L2 cache.
inline constexpr std::int64_t kQueryBlock = 64;
// Query i sees the keys first[i] … last[i]; none where last is less.
struct KeyLimits {
  std::int32_t first[kQueryBlock];
  std::int32_t last[kQueryBlock];
};
// Of kLanes columns from `column` on, rows [begin, end): scores := exp(scores·scale − max), 0 where
// the query does not see the key. log_sum_exp[0 … kLanes), inverse_sums[0 … kLanes) = 1 / Σ.
void softmax_columns(float* scores, const KeyLimits& limits, std::int64_t column,
                     std::int64_t begin, std::int64_t end, float scale, float* inverse_sums,
                     float* log_sum_exp);
// scores := P = exp(scores·scale − log_sum_exp), dscores := P·(dscores − delta)·scale, both 0 where
// the query does not see the key.
void softmax_backward_columns(float* scores, float* dscores, const KeyLimits& limits,
                              std::int64_t column, std::int64_t begin, std::int64_t end,
                              float scale, const float* log_sum_exp, const float* delta);
// to column i = from row i: `to` has rows of kQueryBlock floats, one for each column of `from`,
// and zeros in the columns [rows, columns_of_to).
void transpose_rows(const float* from, std::int64_t stride, std::int64_t rows, std::int64_t width,
                    float* to, std::int64_t columns_of_to);

// A row of a dropout (see train/tensor/dropout.h), whose columns are elements or keys.
struct DropoutRow {
  std::uint32_t seed, epoch, site, sample, token, threshold;
  float scale;
};
inline DropoutRow dropout_row_of(const Dropout& d, std::int64_t row, std::uint32_t head = 0) {
  return {d.seed,
          d.epoch,
          d.site | head,
          static_cast<std::uint32_t>(d.samples[row]),
          static_cast<std::uint32_t>(d.tokens[row]),
          d.threshold,
          d.scale};
}
// out = x where it stays, times the scale, else 0; plus residual, unless it is null. x[0] is column
// `first`. out may be x or residual.
void dropout_row(const float* x, const float* residual, float* out, std::int64_t count,
                 std::int64_t first, const DropoutRow& row);
// What rows a block's queries are; key k of its scores is column k − starts[query].
struct DropoutQueries {
  std::uint32_t seed, epoch, site, threshold;
  float scale;
  std::uint32_t samples[kQueryBlock], tokens[kQueryBlock];
  std::int32_t starts[kQueryBlock];
};
// Of kLanes columns from `column` on, rows [begin, end): scores as dropout_row would leave them.
void dropout_columns(float* scores, const DropoutQueries& queries, std::int64_t column,
                     std::int64_t begin, std::int64_t end);
void scale_row(float* x, float factor, std::int64_t count);
float dot(const float* a, const float* b, std::int64_t count);

}  // namespace troupe::train::kernels

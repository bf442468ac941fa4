#include "train/cpu/attention.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/cpu/kernels.h"

namespace troupe::train {
namespace {

// Rows of queries a block has: its scores against 1,024 keys are 256 KiB and stay in the L2 cache.
constexpr std::int64_t kQueryBlock = 64;
// Below so many rows (a decoded token), dot products beat a compiled product.
constexpr std::int64_t kGemmRowsMin = 8;

// The queries [begin, begin + rows) of a batch row and the keys [key_begin, key_begin + keys) that
// any of them sees.
struct Block {
  std::int64_t begin = 0, rows = 0, key_begin = 0, keys = 0;
};

Block block_at(const AttentionShape& s, std::int64_t batch, std::int64_t index) {
  Block block;
  block.begin = index * kQueryBlock;
  block.rows = std::min(kQueryBlock, s.query_length - block.begin);
  const std::int64_t key_end = s.key_length - s.query_length + block.begin + block.rows;
  if (s.first_key)  // multiples of the block size keep the number of compiled shapes small
    block.key_begin = s.first_key[batch * s.query_length + block.begin] / kQueryBlock * kQueryBlock;
  block.keys = key_end - block.key_begin;
  return block;
}

// The keys that one query of a block sees, relative to the block's first key.
struct KeyRange {
  std::int64_t first = 0, end = 0;
};

KeyRange range_of(const AttentionShape& s, std::int64_t batch, const Block& block,
                  std::int64_t row) {
  const std::int64_t query = block.begin + row;
  const std::int64_t first = s.first_key ? s.first_key[batch * s.query_length + query] : 0;
  return {std::max<std::int64_t>(first - block.key_begin, 0),
          s.key_length - s.query_length + query + 1 - block.key_begin};
}

std::int64_t blocks_of(const AttentionShape& s) {
  return (s.query_length + kQueryBlock - 1) / kQueryBlock;
}

void check_shape(const AttentionShape& s) {
  TROUPE_CHECK(s.key_heads > 0 && s.query_heads % s.key_heads == 0, "heads {} and {}",
               s.query_heads, s.key_heads);
  TROUPE_CHECK(s.query_length > 0 && s.query_length <= s.key_length, "lengths {} and {}",
               s.query_length, s.key_length);
}

// One query row by dot products: scores in `scores`, the result in `out`.
void attend_row(const AttentionShape& s, KeyRange range, const float* q, const float* k,
                const float* v, float* scores, float* out, float* log_sum_exp) {
  for (std::int64_t j = range.first; j < range.end; ++j)
    scores[j] = kernels::dot(q, k + j * s.key_stride, s.head_dim);
  float inverse_sum = 0;
  const float lse =
      kernels::softmax_row(scores, range.end, range.first, range.end, s.scale, &inverse_sum);
  if (log_sum_exp) *log_sum_exp = lse;
  std::fill(out, out + s.head_dim, 0.0f);
  for (std::int64_t j = range.first; j < range.end; ++j)
    for (std::int64_t d = 0; d < s.head_dim; ++d) out[d] += scores[j] * v[j * s.key_stride + d];
  kernels::scale_row(out, inverse_sum, s.head_dim);
}

}  // namespace

void attention_forward(Arena& arena, GemmEngine& gemms, SlotWorkspaces& workspaces,
                       const AttentionShape& s, const float* q, const float* k, const float* v,
                       float* out, float* log_sum_exp) {
  check_shape(s);
  const std::int64_t blocks = blocks_of(s);
  const std::int64_t out_stride = s.query_heads * s.head_dim;
  arena.parallel_for(s.batch * s.query_heads * blocks, [&](std::int64_t tile, int slot) {
    const std::int64_t batch = tile / (s.query_heads * blocks);
    const std::int64_t head = tile / blocks % s.query_heads;
    const Block block = block_at(s, batch, tile % blocks);
    const std::int64_t key_head = head / (s.query_heads / s.key_heads);
    const std::int64_t key_offset =
        batch * s.key_batch_stride + block.key_begin * s.key_stride + key_head * s.head_dim;
    const std::int64_t query_row = batch * s.query_length + block.begin;
    const float* q_block = q + query_row * s.query_stride + head * s.head_dim;
    float* out_block = out + query_row * out_stride + head * s.head_dim;
    float* lse = log_sum_exp
                     ? log_sum_exp + (batch * s.query_heads + head) * s.query_length + block.begin
                     : nullptr;
    float* scores = workspaces.floats(slot, static_cast<std::size_t>(block.rows * block.keys));
    if (s.query_length < kGemmRowsMin) {
      for (std::int64_t i = 0; i < block.rows; ++i)
        attend_row(s, range_of(s, batch, block, i), q_block + i * s.query_stride, k + key_offset,
                   v + key_offset, scores, out_block + i * out_stride, lse ? lse + i : nullptr);
      return;
    }
    gemms.run_single({.m = block.rows,
                      .n = block.keys,
                      .k = s.head_dim,
                      .a = q_block,
                      .a_stride = s.query_stride,
                      .b = k + key_offset,
                      .b_stride = s.key_stride,
                      .transpose_b = true,
                      .c = scores,
                      .c_stride = block.keys},
                     slot);
    float inverse_sums[kQueryBlock];
    for (std::int64_t i = 0; i < block.rows; ++i) {
      const KeyRange range = range_of(s, batch, block, i);
      const float row_lse = kernels::softmax_row(scores + i * block.keys, block.keys, range.first,
                                                 range.end, s.scale, &inverse_sums[i]);
      if (lse) lse[i] = row_lse;
    }
    gemms.run_single({.m = block.rows,
                      .n = s.head_dim,
                      .k = block.keys,
                      .a = scores,
                      .a_stride = block.keys,
                      .b = v + key_offset,
                      .b_stride = s.key_stride,
                      .c = out_block,
                      .c_stride = out_stride},
                     slot);
    for (std::int64_t i = 0; i < block.rows; ++i)
      kernels::scale_row(out_block + i * out_stride, inverse_sums[i], s.head_dim);
  });
}

namespace {

// What a tile of the backward pass works on: pointers at batch row and head.
struct BackwardTile {
  const float *q, *k, *v, *out, *log_sum_exp, *dout;
  float *dq, *dk, *dv;
};

// With P the probabilities, dP = dout·vᵀ and delta_i = Σ_d dout_id·out_id:
// dS = P∘(dP − delta)·scale, dq = dS·k, dk += dSᵀ·q, dv += Pᵀ·dout.
void backward_block(GemmEngine& gemms, const AttentionShape& s, std::int64_t batch,
                    const Block& block, const BackwardTile& t, float* scores, int slot) {
  const std::int64_t out_stride = s.query_heads * s.head_dim;
  const float* q = t.q + block.begin * s.query_stride;
  const float* dout = t.dout + block.begin * out_stride;
  const float* out = t.out + block.begin * out_stride;
  const std::int64_t key_offset = block.key_begin * s.key_stride;
  float* dscores = scores + block.rows * block.keys;
  const Gemm scores_gemm{.m = block.rows,
                         .n = block.keys,
                         .k = s.head_dim,
                         .a = q,
                         .a_stride = s.query_stride,
                         .b = t.k + key_offset,
                         .b_stride = s.key_stride,
                         .transpose_b = true,
                         .c = scores,
                         .c_stride = block.keys};
  gemms.run_single(scores_gemm, slot);
  Gemm dscores_gemm = scores_gemm;
  dscores_gemm.a = dout, dscores_gemm.a_stride = out_stride;
  dscores_gemm.b = t.v + key_offset, dscores_gemm.c = dscores;
  gemms.run_single(dscores_gemm, slot);
  for (std::int64_t i = 0; i < block.rows; ++i) {
    const KeyRange range = range_of(s, batch, block, i);
    const float delta = kernels::dot(dout + i * out_stride, out + i * out_stride, s.head_dim);
    kernels::softmax_backward_row(scores + i * block.keys, dscores + i * block.keys, block.keys,
                                  range.first, range.end, s.scale, t.log_sum_exp[block.begin + i],
                                  delta);
  }
  gemms.run_single({.m = block.rows,
                    .n = s.head_dim,
                    .k = block.keys,
                    .a = dscores,
                    .a_stride = block.keys,
                    .b = t.k + key_offset,
                    .b_stride = s.key_stride,
                    .c = t.dq + block.begin * s.query_stride,
                    .c_stride = s.query_stride},
                   slot);
  const Gemm dk_gemm{.m = block.keys,
                     .n = s.head_dim,
                     .k = block.rows,
                     .a = dscores,
                     .a_stride = block.keys,
                     .transpose_a = true,
                     .b = q,
                     .b_stride = s.query_stride,
                     .c = t.dk + key_offset,
                     .c_stride = s.key_stride,
                     .accumulate = true};
  gemms.run_single(dk_gemm, slot);
  Gemm dv_gemm = dk_gemm;
  dv_gemm.a = scores, dv_gemm.b = dout, dv_gemm.b_stride = out_stride;
  dv_gemm.c = t.dv + key_offset;
  gemms.run_single(dv_gemm, slot);
}

}  // namespace

void attention_backward(Arena& arena, GemmEngine& gemms, SlotWorkspaces& workspaces,
                        const AttentionShape& s, const float* q, const float* k, const float* v,
                        const float* out, const float* log_sum_exp, const float* dout, float* dq,
                        float* dk, float* dv) {
  check_shape(s);
  TROUPE_CHECK(s.query_length == s.key_length, "lengths {} and {}", s.query_length, s.key_length);
  const std::int64_t group = s.query_heads / s.key_heads;
  arena.parallel_for(s.batch * s.key_heads, [&](std::int64_t tile, int slot) {
    const std::int64_t batch = tile / s.key_heads;
    const std::int64_t key_head = tile % s.key_heads;
    const std::int64_t key_offset = batch * s.key_batch_stride + key_head * s.head_dim;
    float* scores =
        workspaces.floats(slot, static_cast<std::size_t>(2 * kQueryBlock * s.key_length));
    for (std::int64_t row = 0; row < s.key_length; ++row) {
      std::fill_n(dk + key_offset + row * s.key_stride, s.head_dim, 0.0f);
      std::fill_n(dv + key_offset + row * s.key_stride, s.head_dim, 0.0f);
    }
    for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      const std::int64_t q_offset = batch * s.query_length * s.query_stride + head * s.head_dim;
      const std::int64_t out_offset = (batch * s.query_length * s.query_heads + head) * s.head_dim;
      const BackwardTile t{q + q_offset,
                           k + key_offset,
                           v + key_offset,
                           out + out_offset,
                           log_sum_exp + (batch * s.query_heads + head) * s.query_length,
                           dout + out_offset,
                           dq + q_offset,
                           dk + key_offset,
                           dv + key_offset};
      for (std::int64_t index = 0; index < blocks_of(s); ++index)
        backward_block(gemms, s, batch, block_at(s, batch, index), t, scores, slot);
    }
  });
}

}  // namespace troupe::train

#include "train/cpu/attention.h"

#include <algorithm>
#include <optional>

#include "train/cpu/attention_block.h"
#include "train/cpu/kernels.h"
#include "train/cpu/small_product.h"

namespace troupe::train {
namespace {

using kernels::kQueryBlock;

// Below so many rows (a decoded token), dot products are less work than a block.
constexpr std::int64_t kBlockRowsMin = 8;

// Scratch memory of a block: the transposed rows and scores.
std::size_t floats_of(std::int64_t sets, std::int64_t keys, std::int64_t head_dim) {
  return static_cast<std::size_t>(sets * (keys + head_dim) * kQueryBlock);
}

// The query sees [first, end) of the keys at k. `query`: its row among all, of `head`.
void attend_row(const AttentionShape& s, std::int64_t query, std::int64_t head, std::int64_t first,
                std::int64_t end, const float* q, const float* k, const float* v, float* scores,
                float* out, float* log_sum_exp) {
  for (std::int64_t j = first; j < end; ++j)
    scores[j] = kernels::dot(q, k + j * s.key_stride, s.head_dim);
  float inverse_sum = 0;
  const float lse = kernels::softmax_row(scores, end, first, end, s.scale, &inverse_sum);
  if (log_sum_exp) *log_sum_exp = lse;
  if (s.dropout)
    kernels::dropout_row(
        scores + first, nullptr, scores + first, end - first, first - first_key_of(s, query),
        kernels::dropout_row_of(s.dropout, query, static_cast<std::uint32_t>(head)));
  std::fill(out, out + s.head_dim, 0.0f);
  for (std::int64_t j = first; j < end; ++j)
    for (std::int64_t d = 0; d < s.head_dim; ++d) out[d] += scores[j] * v[j * s.key_stride + d];
  kernels::scale_row(out, inverse_sum, s.head_dim);
}

// scores = rows·columnsᵀ where a group of queries sees a group of keys. rows: of keys, by the
// shape's stride; columns: transposed, (head_dim, kQueryBlock).
void multiply_scores(const AttentionShape& s, const AttentionBlock& block, const float* rows,
                     const float* columns, float* scores) {
  block.for_key_ranges(
      [&](std::int64_t key, std::int64_t key_end, std::int64_t query, std::int64_t query_end) {
        kernels::multiply({.m = key_end - key,
                           .n = query_end - query,
                           .k = s.head_dim,
                           .a = rows + key * s.key_stride,
                           .a_row = s.key_stride,
                           .a_column = 1,
                           .b = columns + query,
                           .b_stride = kQueryBlock,
                           .c = scores + key * kQueryBlock + query,
                           .c_stride = kQueryBlock});
      });
}

// out = scoresᵀ·rows. rows: of keys; out: of queries.
void multiply_transposed(const AttentionShape& s, const AttentionBlock& block, const float* scores,
                         const float* rows, float* out, std::int64_t out_stride) {
  block.for_query_groups(
      [&](std::int64_t query, std::int64_t query_end, std::int64_t key, std::int64_t key_end) {
        kernels::multiply({.m = query_end - query,
                           .n = s.head_dim,
                           .k = key_end - key,
                           .a = scores + key * kQueryBlock + query,
                           .a_row = 1,
                           .a_column = kQueryBlock,
                           .b = rows + key * s.key_stride,
                           .b_stride = s.key_stride,
                           .c = out + query * out_stride,
                           .c_stride = out_stride});
      });
}

// out += scores·rows. rows: of queries; out: of keys.
void add_product(const AttentionShape& s, const AttentionBlock& block, const float* scores,
                 const float* rows, std::int64_t rows_stride, float* out) {
  block.for_key_ranges(
      [&](std::int64_t key, std::int64_t key_end, std::int64_t query, std::int64_t query_end) {
        kernels::multiply({.m = key_end - key,
                           .n = s.head_dim,
                           .k = std::min(query_end, block.rows) - query,
                           .a = scores + key * kQueryBlock + query,
                           .a_row = kQueryBlock,
                           .a_column = 1,
                           .b = rows + query * rows_stride,
                           .b_stride = rows_stride,
                           .c = out + key * s.key_stride,
                           .c_stride = s.key_stride,
                           .accumulate = true});
      });
}

// Drops out what stands in a block's scores.
void drop_out(const AttentionBlock& block, const kernels::DropoutQueries& queries, float* scores) {
  block.for_query_groups(
      [&](std::int64_t query, std::int64_t, std::int64_t key, std::int64_t key_end) {
        kernels::dropout_columns(scores, queries, query, key, key_end);
      });
}

// q, k, v, out, log_sum_exp: at the batch row and head.
void forward_block(const AttentionShape& s, const AttentionBlock& block, std::int64_t batch,
                   std::int64_t head, const float* q, const float* k, const float* v, float* out,
                   float* log_sum_exp, float* scratch) {
  const std::int64_t out_stride = s.query_heads * s.head_dim;
  float* columns = scratch;
  float* scores = columns + s.head_dim * kQueryBlock;
  k += block.key_begin * s.key_stride, v += block.key_begin * s.key_stride;
  out += block.begin * out_stride;
  kernels::transpose_rows(q + block.begin * s.query_stride, s.query_stride, block.rows, s.head_dim,
                          columns, block.width());
  multiply_scores(s, block, k, columns, scores);
  float inverse_sums[kQueryBlock], lse[kQueryBlock];
  block.for_query_groups(
      [&](std::int64_t query, std::int64_t, std::int64_t key, std::int64_t key_end) {
        kernels::softmax_columns(scores, block.limits, query, key, key_end, s.scale,
                                 inverse_sums + query, lse + query);
      });
  if (log_sum_exp) std::copy_n(lse, block.rows, log_sum_exp + block.begin);
  if (s.dropout) drop_out(block, dropout_queries(s, block, batch, head), scores);
  multiply_transposed(s, block, scores, v, out, out_stride);
  for (std::int64_t i = 0; i < block.rows; ++i)
    kernels::scale_row(out + i * out_stride, inverse_sums[i], s.head_dim);
}

}  // namespace

void attention_forward(Arena& arena, SlotWorkspaces& workspaces, const AttentionShape& s,
                       const float* q, const float* k, const float* v, float* out,
                       float* log_sum_exp) {
  check_attention(s);
  const std::int64_t blocks = AttentionBlock::count(s);
  const std::int64_t out_stride = s.query_heads * s.head_dim;
  const bool in_blocks = s.query_length >= kBlockRowsMin;
  // As much for all blocks: what is kept stops growing at once. A row alone has a score a key.
  const std::size_t floats = in_blocks ? floats_of(1, AttentionBlock::keys_max(s), s.head_dim)
                                       : static_cast<std::size_t>(s.key_length);
  arena.parallel_for(s.batch * s.query_heads * blocks, [&](std::int64_t tile, int slot) {
    const std::int64_t batch = tile / (s.query_heads * blocks);
    const std::int64_t head = tile / blocks % s.query_heads;
    const AttentionBlock block(s, batch, tile % blocks);
    const std::int64_t key_head = head / (s.query_heads / s.key_heads);
    const std::int64_t key_offset = batch * s.key_batch_stride + key_head * s.head_dim;
    const std::int64_t query_row = batch * s.query_length;
    const float* q_head = q + query_row * s.query_stride + head * s.head_dim;
    float* out_head = out + query_row * out_stride + head * s.head_dim;
    float* lse =
        log_sum_exp ? log_sum_exp + (batch * s.query_heads + head) * s.query_length : nullptr;
    float* scratch = workspaces.floats(slot, floats);
    if (in_blocks)
      return forward_block(s, block, batch, head, q_head, k + key_offset, v + key_offset, out_head,
                           lse, scratch);
    for (std::int64_t i = 0; i < block.rows; ++i) {
      const std::int64_t row = block.begin + i;
      attend_row(s, query_row + row, head, block.key_begin + block.limits.first[i],
                 block.key_begin + block.limits.last[i] + 1, q_head + row * s.query_stride,
                 k + key_offset, v + key_offset, scratch, out_head + row * out_stride,
                 lse ? lse + row : nullptr);
    }
  });
}

namespace {

// With P the probabilities, dP = dout·vᵀ and delta_i = Σ_d dout_id·out_id:
// dS = P∘(dP − delta)·scale, dq = dS·k, dk += dSᵀ·q, dv += Pᵀ·dout. With a dropout's mask M, dP and
// the P of dv are those times M; delta stays, as it is Σ_j P_ij·dP_ij.
void backward_block(const AttentionShape& s, const AttentionBlock& block, std::int64_t batch,
                    const AttentionGradients& t, float* scratch) {
  const std::int64_t out_stride = s.query_heads * s.head_dim;
  const std::int64_t key_offset = block.key_begin * s.key_stride;
  const float* q = t.q + block.begin * s.query_stride;
  const float* dout = t.dout + block.begin * out_stride;
  const float* out = t.out + block.begin * out_stride;
  float* columns = scratch;
  float* scores = columns + 2 * s.head_dim * kQueryBlock;
  float* dscores = scores + block.keys * kQueryBlock;
  kernels::transpose_rows(q, s.query_stride, block.rows, s.head_dim, columns, block.width());
  multiply_scores(s, block, t.k + key_offset, columns, scores);
  columns += s.head_dim * kQueryBlock;
  kernels::transpose_rows(dout, out_stride, block.rows, s.head_dim, columns, block.width());
  multiply_scores(s, block, t.v + key_offset, columns, dscores);
  float delta[kQueryBlock] = {}, lse[kQueryBlock] = {};
  for (std::int64_t i = 0; i < block.rows; ++i) {
    delta[i] = kernels::dot(dout + i * out_stride, out + i * out_stride, s.head_dim);
    lse[i] = t.log_sum_exp[block.begin + i];
  }
  std::optional<kernels::DropoutQueries> dropped;
  if (s.dropout) dropped = dropout_queries(s, block, batch, t.head);
  if (dropped) drop_out(block, *dropped, dscores);
  block.for_query_groups(
      [&](std::int64_t query, std::int64_t, std::int64_t key, std::int64_t key_end) {
        kernels::softmax_backward_columns(scores, dscores, block.limits, query, key, key_end,
                                          s.scale, lse + query, delta + query);
      });
  if (dropped) drop_out(block, *dropped, scores);
  multiply_transposed(s, block, dscores, t.k + key_offset, t.dq + block.begin * s.query_stride,
                      s.query_stride);
  add_product(s, block, dscores, q, s.query_stride, t.dk + key_offset);
  add_product(s, block, scores, dout, out_stride, t.dv + key_offset);
}

}  // namespace

void attention_backward(Arena& arena, SlotWorkspaces& workspaces, const AttentionShape& s,
                        const float* q, const float* k, const float* v, const float* out,
                        const float* log_sum_exp, const float* dout, float* dq, float* dk,
                        float* dv) {
  attention_backward_tiles(
      arena, workspaces, s, {0, q, k, v, out, log_sum_exp, dout, dq, dk, dv},
      floats_of(2, AttentionBlock::keys_max(s), s.head_dim),
      [](float*, const float*, const float*) {},
      [&](float* scratch, std::int64_t batch, const AttentionGradients& head) {
        for (std::int64_t index = 0; index < AttentionBlock::count(s); ++index)
          backward_block(s, AttentionBlock(s, batch, index), batch, head, scratch);
      });
}

}  // namespace troupe::train

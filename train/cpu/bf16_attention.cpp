#include "train/cpu/bf16_attention.h"

#include <algorithm>

#include "train/cpu/attention_block.h"
#include "train/cpu/bf16_kernels.h"
#include "train/cpu/kernels.h"

namespace troupe::train {
namespace {

using bf16::kPanelOfA;
using bf16::kPanelOfB;
using bf16::pairs_of;

// Queries that are worked on at once: their scores against 1,024 keys take a quarter of a level-2
// cache.
constexpr std::int64_t kQueries = 64;
constexpr std::int64_t kQueriesMin = 8;

// Queries [begin, begin + rows) and the keys [key_begin, key_begin + keys) that any of them sees,
// from the beginning of a panel of keys.
struct QueryBlock {
  std::int64_t begin = 0, rows = 0, key_begin = 0, keys = 0;
};

QueryBlock block_of(const AttentionShape& s, std::int64_t batch, std::int64_t begin) {
  QueryBlock block{begin, std::min(kQueries, s.query_length - begin), 0, 0};
  if (s.first_key)
    block.key_begin = s.first_key[batch * s.query_length + begin] / kPanelOfB * kPanelOfB;
  block.keys = s.key_length - s.query_length + begin + block.rows - block.key_begin;
  return block;
}

// The keys that query `row` of the block sees, from the block's first key.
std::int64_t first_of(const AttentionShape& s, std::int64_t batch, const QueryBlock& block,
                      std::int64_t row) {
  if (!s.first_key) return 0;
  const std::int64_t first = s.first_key[batch * s.query_length + block.begin + row];
  return std::max<std::int64_t>(first - block.key_begin, 0);
}
std::int64_t end_of(const AttentionShape& s, const QueryBlock& block, std::int64_t row) {
  return s.key_length - s.query_length + block.begin + row + 1 - block.key_begin;
}

// Drops out weights, or their gradients, of a block's query that sees [first, end).
void drop_out(const AttentionShape& s, std::int64_t batch, std::int64_t head,
              const QueryBlock& block, std::int64_t row, float* scores) {
  const std::int64_t query = batch * s.query_length + block.begin + row;
  const std::int64_t first = first_of(s, batch, block, row);
  kernels::dropout_row(scores + first, nullptr, scores + first, end_of(s, block, row) - first,
                       block.key_begin + first - first_key_of(s, query),
                       kernels::dropout_row_of(s.dropout, query, static_cast<std::uint32_t>(head)));
}

bf16::Source deep(const float* data, std::int64_t stride) {
  return {data, DType::kF32, stride, true};
}
bf16::Source flat(const float* data, std::int64_t stride) {
  return {data, DType::kF32, stride, false};
}

// Memory of a slot, cut into what a tile needs; counts where there is none.
class Cut {
 public:
  explicit Cut(float* memory) : memory_(memory) {}
  float* floats(std::int64_t count) {
    float* at = memory_ ? memory_ + used_ : nullptr;
    used_ += (count + 15) / 16 * 16;
    return at;
  }
  std::uint16_t* packed(std::int64_t edge, std::int64_t depth, std::int64_t panel) {
    return reinterpret_cast<std::uint16_t*>(floats(bf16::packed_elements(edge, depth, panel) / 2));
  }
  std::size_t used() const { return static_cast<std::size_t>(used_); }

 private:
  float* memory_;
  std::int64_t used_ = 0;
};

// c = a·b, or c += a·b. b's panels have room for b_pairs pairs.
void multiply(const bf16::Rows& a, std::int64_t rows, const std::uint16_t* b, std::int64_t b_pairs,
              std::int64_t columns, std::int64_t pairs, float* c, std::int64_t c_stride,
              bool accumulate) {
  LinesAhead nothing;
  for (std::int64_t column = 0; column < columns; column += kPanelOfB)
    for (std::int64_t row = 0; row < rows; row += kPanelOfA)
      bf16::multiply(a.from(row, pairs), b + column * 2 * b_pairs, pairs,
                     {.c = c + row * c_stride + column,
                      .stride = c_stride,
                      .rows = std::min(kPanelOfA, rows - row),
                      .columns = std::min(kPanelOfB, columns - column),
                      .accumulate = accumulate},
                     nothing, 0);
}

struct ForwardBuffers {
  ForwardBuffers(Cut& cut, const AttentionShape& s)
      : keys(cut.packed(s.key_length, s.head_dim, kPanelOfB)),
        values(cut.packed(s.head_dim, s.key_length, kPanelOfB)),
        queries(cut.packed(kQueries, s.head_dim, kPanelOfA)),
        probabilities(cut.packed(kQueries, s.key_length, kPanelOfA)),
        scores(cut.floats(kQueries * s.key_length)) {}
  std::uint16_t *keys, *values;  // columns of q·kᵀ and p·v
  std::uint16_t *queries, *probabilities;
  float* scores;
};

struct BackwardBuffers {
  BackwardBuffers(Cut& cut, const AttentionShape& s)
      : keys(cut.packed(s.key_length, s.head_dim, kPanelOfB)),
        values(cut.packed(s.key_length, s.head_dim, kPanelOfB)),
        key_rows(cut.packed(s.head_dim, s.key_length, kPanelOfB)),
        queries(cut.packed(kQueries, s.head_dim, kPanelOfA)),
        query_rows(cut.packed(s.head_dim, kQueries, kPanelOfB)),
        outputs(cut.packed(kQueries, s.head_dim, kPanelOfA)),
        output_rows(cut.packed(s.head_dim, kQueries, kPanelOfB)),
        by_query(cut.packed(kQueries, s.key_length, kPanelOfA)),
        by_key(cut.packed(s.key_length, kQueries, kPanelOfA)),
        scores(cut.floats(kQueries * s.key_length)),
        dscores(cut.floats(kQueries * s.key_length)) {}
  std::uint16_t *keys, *values, *key_rows;  // columns of q·kᵀ, dout·vᵀ, dscores·k
  std::uint16_t *queries, *query_rows;      // rows of q·kᵀ, columns of dscoresᵀ·q
  std::uint16_t *outputs, *output_rows;     // rows of dout·vᵀ, columns of pᵀ·dout
  std::uint16_t *by_query, *by_key;         // scores or their gradients as rows of a product
  float *scores, *dscores;
};

template <typename Buffers>
std::size_t floats_of(const AttentionShape& s) {
  Cut cut(nullptr);
  Buffers counted(cut, s);
  return cut.used();
}

// With P the probabilities, dP = dout·vᵀ and delta_i = Σ_d dout_id·out_id:
// dS = P∘(dP − delta)·scale, dq = dS·k, dk += dSᵀ·q, dv += Pᵀ·dout. Dropout: see attention.cpp.
void backward_query_block(const AttentionShape& s, std::int64_t batch, const QueryBlock& block,
                          const AttentionGradients& h, const BackwardBuffers& to) {
  const std::int64_t width = s.head_dim, out_stride = s.query_heads * s.head_dim;
  const std::int64_t depth_pairs = pairs_of(width), key_pairs = pairs_of(s.key_length);
  const std::int64_t row_pairs = pairs_of(block.rows), block_pairs = pairs_of(block.keys);
  const float* q = h.q + block.begin * s.query_stride;
  const float* dout = h.dout + block.begin * out_stride;
  const float* out = h.out + block.begin * out_stride;
  const std::int64_t key_panels = block.key_begin * 2 * depth_pairs;
  const bf16::Rows queries =
      bf16::rows_of(deep(q, s.query_stride), 0, block.rows, 0, width, to.queries);
  bf16::pack_columns(flat(q, s.query_stride), 0, width, 0, block.rows, to.query_rows);
  const bf16::Rows outputs =
      bf16::rows_of(deep(dout, out_stride), 0, block.rows, 0, width, to.outputs);
  bf16::pack_columns(flat(dout, out_stride), 0, width, 0, block.rows, to.output_rows);
  multiply(queries, block.rows, to.keys + key_panels, depth_pairs, block.keys, depth_pairs,
           to.scores, block.keys, false);
  multiply(outputs, block.rows, to.values + key_panels, depth_pairs, block.keys, depth_pairs,
           to.dscores, block.keys, false);
  for (std::int64_t i = 0; i < block.rows; ++i) {
    const float delta = kernels::dot(dout + i * out_stride, out + i * out_stride, width);
    if (s.dropout) drop_out(s, batch, h.head, block, i, to.dscores + i * block.keys);
    kernels::softmax_backward_row(to.scores + i * block.keys, to.dscores + i * block.keys,
                                  block.keys, first_of(s, batch, block, i), end_of(s, block, i),
                                  s.scale, h.log_sum_exp[block.begin + i], delta);
    if (s.dropout) drop_out(s, batch, h.head, block, i, to.scores + i * block.keys);
  }
  float* dk = h.dk + block.key_begin * s.key_stride;
  float* dv = h.dv + block.key_begin * s.key_stride;
  multiply(bf16::rows_of(deep(to.dscores, block.keys), 0, block.rows, 0, block.keys, to.by_query),
           block.rows, to.key_rows + block.key_begin * kPanelOfB, key_pairs, width, block_pairs,
           h.dq + block.begin * s.query_stride, s.query_stride, false);
  multiply(bf16::rows_of(flat(to.dscores, block.keys), 0, block.keys, 0, block.rows, to.by_key),
           block.keys, to.query_rows, row_pairs, width, row_pairs, dk, s.key_stride, true);
  multiply(bf16::rows_of(flat(to.scores, block.keys), 0, block.keys, 0, block.rows, to.by_key),
           block.keys, to.output_rows, row_pairs, width, row_pairs, dv, s.key_stride, true);
}

}  // namespace

bool attends_in_bf16(const AttentionShape& s) {
  return s.arithmetic == Arithmetic::kBf16 && s.query_length >= kQueriesMin;
}

void bf16_attention_forward(Arena& arena, SlotWorkspaces& workspaces, const AttentionShape& s,
                            const float* q, const float* k, const float* v, float* out,
                            float* log_sum_exp) {
  check_attention(s);
  const std::int64_t width = s.head_dim, out_stride = s.query_heads * width;
  const std::int64_t depth_pairs = pairs_of(width), key_pairs = pairs_of(s.key_length);
  const std::size_t floats = floats_of<ForwardBuffers>(s);
  arena.parallel_for(s.batch * s.query_heads, [&](std::int64_t tile, int slot) {
    Cut cut(workspaces.floats(slot, floats));
    const ForwardBuffers to(cut, s);
    const std::int64_t batch = tile / s.query_heads, head = tile % s.query_heads;
    const std::int64_t key_offset =
        batch * s.key_batch_stride + head / (s.query_heads / s.key_heads) * width;
    bf16::pack_columns(deep(k + key_offset, s.key_stride), 0, s.key_length, 0, width, to.keys);
    bf16::pack_columns(flat(v + key_offset, s.key_stride), 0, width, 0, s.key_length, to.values);
    for (std::int64_t begin = 0; begin < s.query_length; begin += kQueries) {
      const QueryBlock block = block_of(s, batch, begin);
      const std::int64_t row = batch * s.query_length + begin;
      float* out_rows = out + row * out_stride + head * width;
      const bf16::Rows queries =
          bf16::rows_of(deep(q + row * s.query_stride + head * width, s.query_stride), 0,
                        block.rows, 0, width, to.queries);
      multiply(queries, block.rows, to.keys + block.key_begin * 2 * depth_pairs, depth_pairs,
               block.keys, depth_pairs, to.scores, block.keys, false);
      float inverse_sums[kQueries];
      for (std::int64_t i = 0; i < block.rows; ++i) {
        const float lse = kernels::softmax_row(to.scores + i * block.keys, block.keys,
                                               first_of(s, batch, block, i), end_of(s, block, i),
                                               s.scale, &inverse_sums[i]);
        if (s.dropout) drop_out(s, batch, head, block, i, to.scores + i * block.keys);
        if (log_sum_exp)
          log_sum_exp[(batch * s.query_heads + head) * s.query_length + begin + i] = lse;
      }
      const bf16::Rows probabilities = bf16::rows_of(deep(to.scores, block.keys), 0, block.rows, 0,
                                                     block.keys, to.probabilities);
      multiply(probabilities, block.rows, to.values + block.key_begin * kPanelOfB, key_pairs, width,
               pairs_of(block.keys), out_rows, out_stride, false);
      for (std::int64_t i = 0; i < block.rows; ++i)
        kernels::scale_row(out_rows + i * out_stride, inverse_sums[i], width);
    }
  });
}

void bf16_attention_backward(Arena& arena, SlotWorkspaces& workspaces, const AttentionShape& s,
                             const float* q, const float* k, const float* v, const float* out,
                             const float* log_sum_exp, const float* dout, float* dq, float* dk,
                             float* dv) {
  const std::int64_t width = s.head_dim;
  attention_backward_tiles(
      arena, workspaces, s, {0, q, k, v, out, log_sum_exp, dout, dq, dk, dv},
      floats_of<BackwardBuffers>(s),
      [&](float* scratch, const float* keys, const float* values) {
        Cut cut(scratch);
        const BackwardBuffers to(cut, s);
        bf16::pack_columns(deep(keys, s.key_stride), 0, s.key_length, 0, width, to.keys);
        bf16::pack_columns(deep(values, s.key_stride), 0, s.key_length, 0, width, to.values);
        bf16::pack_columns(flat(keys, s.key_stride), 0, width, 0, s.key_length, to.key_rows);
      },
      [&](float* scratch, std::int64_t batch, const AttentionGradients& head) {
        Cut cut(scratch);
        const BackwardBuffers to(cut, s);
        for (std::int64_t begin = 0; begin < s.query_length; begin += kQueries)
          backward_query_block(s, batch, block_of(s, batch, begin), head, to);
      });
}

}  // namespace troupe::train

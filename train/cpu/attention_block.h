#pragma once
// A block of queries and the keys that they see: private to train/cpu.

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "runtime/base/check.h"
#include "train/cpu/arena.h"
#include "train/cpu/division.h"
#include "train/cpu/kernels.h"
#include "train/cpu/workspace.h"
#include "train/tensor/operators.h"
#include "train/tensor/vectorize.h"

namespace troupe::train {

// Queries of a batch row and the keys that any of them sees.
struct AttentionBlock {
  // Queries that vectors hold side by side; keys are counted in as many, too.
  static constexpr std::int64_t kGroup = kLanes;
  static constexpr std::int64_t kGroups = kernels::kQueryBlock / kGroup;

  std::int64_t begin = 0, rows = 0;      // queries
  std::int64_t key_begin = 0, keys = 0;  // a multiple of kGroup; how many
  kernels::KeyLimits limits;             // relative to key_begin
  // The keys that queries of a group see, relative to key_begin and rounded to multiples of kGroup.
  // Both rise with the group.
  std::array<std::int64_t, kGroups> first{}, end{};
  std::int64_t groups = 0;

  static std::int64_t count(const AttentionShape& s) {
    return ceil_div(s.query_length, kernels::kQueryBlock);
  }

  AttentionBlock(const AttentionShape& s, std::int64_t batch, std::int64_t index)
      : begin(index * kernels::kQueryBlock),
        rows(std::min(kernels::kQueryBlock, s.query_length - begin)),
        groups(ceil_div(rows, kGroup)) {
    const std::int64_t past = s.key_length - s.query_length;
    const auto first_of = [&](std::int64_t row) -> std::int64_t {
      return s.first_key ? s.first_key[batch * s.query_length + begin + row] : 0;
    };
    key_begin = first_of(0) / kGroup * kGroup;
    keys = past + begin + rows - key_begin;
    for (std::int64_t i = 0; i < kernels::kQueryBlock; ++i) {
      // A column that is no query sees nothing.
      const bool is_query = i < rows;
      limits.first[i] =
          is_query ? static_cast<std::int32_t>(std::max<std::int64_t>(first_of(i) - key_begin, 0))
                   : std::numeric_limits<std::int32_t>::max();
      limits.last[i] = is_query ? static_cast<std::int32_t>(past + begin + i - key_begin) : -1;
    }
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t last_query = std::min(rows, (g + 1) * kGroup) - 1;
      first[static_cast<std::size_t>(g)] = limits.first[g * kGroup] / kGroup * kGroup;
      end[static_cast<std::size_t>(g)] =
          std::min(keys, (limits.last[last_query] / kGroup + 1) * kGroup);
    }
  }

  // Keys of the block that has most: of segments and windows far fewer than the row has.
  static std::int64_t keys_max(const AttentionShape& s) {
    if (!s.first_key) return s.key_length;
    std::int64_t most = 0;
    for (std::int64_t batch = 0; batch < s.batch; ++batch)
      for (std::int64_t index = 0; index < count(s); ++index)
        most = std::max(most, AttentionBlock(s, batch, index).keys);
    return most;
  }

  // Columns that scores have: whole groups.
  std::int64_t width() const { return groups * kGroup; }

  // fn(first key, end, first query, end) for ranges of keys that the same groups of queries look
  // at: together all pairs of groups in which anybody sees anything. Keys rise.
  template <typename F>
  void for_key_ranges(F&& fn) const {
    // Between any two of the places where a group's keys begin or end, nothing changes.
    for (std::int64_t at = 0; at < keys;) {
      std::int64_t next = keys, low = groups, high = 0;
      for (std::size_t g = 0; g < static_cast<std::size_t>(groups); ++g) {
        for (const std::int64_t place : {first[g], end[g]})
          if (place > at) next = std::min(next, place);
        if (first[g] > at || end[g] <= at) continue;
        low = std::min(low, static_cast<std::int64_t>(g));
        high = static_cast<std::int64_t>(g) + 1;
      }
      if (low < high) fn(at, next, low * kGroup, high * kGroup);
      at = next;
    }
  }
  // fn(first query, end, first key, end), by groups of queries; a query's end is at most rows.
  template <typename F>
  void for_query_groups(F&& fn) const {
    for (std::int64_t g = 0; g < groups; ++g)
      fn(g * kGroup, std::min(rows, (g + 1) * kGroup), first[static_cast<std::size_t>(g)],
         end[static_cast<std::size_t>(g)]);
  }
};

// Where, among a batch row's keys, the sample of a query begins; `row`: the query's among all.
inline std::int64_t first_key_of(const AttentionShape& s, std::int64_t row) {
  return s.key_length - s.query_length + row % s.query_length - s.dropout.tokens[row];
}

// What the queries of a block's columns are to a dropout.
inline kernels::DropoutQueries dropout_queries(const AttentionShape& s, const AttentionBlock& block,
                                               std::int64_t batch, std::int64_t head) {
  const Dropout& d = s.dropout;
  kernels::DropoutQueries queries{
      d.seed, d.epoch, d.site | static_cast<std::uint32_t>(head), d.threshold, d.scale, {}, {}, {}};
  for (std::int64_t i = 0; i < block.width(); ++i) {
    // A column that is no query is as its group's first: nobody sees anything there.
    const std::int64_t query =
        block.begin + (i < block.rows ? i : i / AttentionBlock::kGroup * AttentionBlock::kGroup);
    const std::int64_t row = batch * s.query_length + query;
    queries.samples[i] = static_cast<std::uint32_t>(d.samples[row]);
    queries.tokens[i] = static_cast<std::uint32_t>(d.tokens[row]);
    queries.starts[i] = static_cast<std::int32_t>(first_key_of(s, row) - block.key_begin);
  }
  return queries;
}

inline void check_attention(const AttentionShape& s) {
  TROUPE_CHECK(s.key_heads > 0 && s.query_heads % s.key_heads == 0, "heads {} and {}",
               s.query_heads, s.key_heads);
  TROUPE_CHECK(s.query_length > 0 && s.query_length <= s.key_length, "lengths {} and {}",
               s.query_length, s.key_length);
}

// What the backward pass of a query head works on: pointers at its batch row and head, or at the
// head of its keys.
struct AttentionGradients {
  std::int64_t head;
  const float *q, *k, *v, *out, *log_sum_exp, *dout;
  float *dq, *dk, *dv;
};

// The backward pass, a tile for each batch row and head of keys, whose gradients are zero at first.
// begin_tile(scratch, k, v) is called once a tile, with `floats` of the slot's memory and the
// tile's keys and values, then add_head(scratch, batch, gradients) for each query head that reads
// them.
template <typename BeginTile, typename AddHead>
void attention_backward_tiles(Arena& arena, SlotWorkspaces& workspaces, const AttentionShape& s,
                              const AttentionGradients& all, std::size_t floats,
                              BeginTile begin_tile, AddHead add_head) {
  check_attention(s);
  TROUPE_CHECK(s.query_length == s.key_length, "lengths {} and {}", s.query_length, s.key_length);
  const std::int64_t group = s.query_heads / s.key_heads;
  arena.parallel_for(s.batch * s.key_heads, [&](std::int64_t tile, int slot) {
    const std::int64_t batch = tile / s.key_heads, key_head = tile % s.key_heads;
    const std::int64_t key_offset = batch * s.key_batch_stride + key_head * s.head_dim;
    float* scratch = workspaces.floats(slot, floats);
    for (std::int64_t row = 0; row < s.key_length; ++row) {
      std::fill_n(all.dk + key_offset + row * s.key_stride, s.head_dim, 0.0f);
      std::fill_n(all.dv + key_offset + row * s.key_stride, s.head_dim, 0.0f);
    }
    begin_tile(scratch, all.k + key_offset, all.v + key_offset);
    for (std::int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
      const std::int64_t q_offset = batch * s.query_length * s.query_stride + head * s.head_dim;
      const std::int64_t out_offset = (batch * s.query_length * s.query_heads + head) * s.head_dim;
      add_head(scratch, batch,
               AttentionGradients{head, all.q + q_offset, all.k + key_offset, all.v + key_offset,
                                  all.out + out_offset,
                                  all.log_sum_exp + (batch * s.query_heads + head) * s.query_length,
                                  all.dout + out_offset, all.dq + q_offset, all.dk + key_offset,
                                  all.dv + key_offset});
    }
  });
}

}  // namespace troupe::train

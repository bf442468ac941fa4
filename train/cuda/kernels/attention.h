#pragma once
// Causal attention with grouped queries, tile by tile, without a T × T matrix: the shapes and
// meanings of train/tensor/operators.h. T: float or Bf16; all sums are fp32.
//
// A block owns kTileRows rows (queries, or keys in the pass for dk and dv) and walks over tiles of
// columns (keys, or queries) in order; nothing is added by two blocks, so results have the same
// bits every time. Its 256 threads are 16 × 16: thread (y, x) computes the scores of rows y·kRows …
// and columns x, x + 16, …, then the sums of its rows at four columns of the head, and at those 64
// on. Forward: online softmax (Milakov and Gimelshein, 2018; FlashAttention, Dao et al., 2022).
// Backward: P again from log_sum_exp, dS = P·(dO·V − Σ dO·O)·scale.

#include <cstdint>

#include "train/cuda/kernels/arithmetic.h"
#include "train/cuda/kernels/block.h"
#include "train/tensor/dropout.h"

namespace troupe::train::cuda {

inline constexpr int kAttentionThreads = 256;
inline constexpr int kAttentionSide = 16;  // threads of either direction
inline constexpr int kHeadColumns = 64;    // of a head, that the threads of a row hold at a time
inline constexpr std::int64_t kHeadDimMax = 256;
using AttentionBlock = Block<kAttentionThreads>;

inline constexpr float kNothingSeen = -__builtin_huge_valf();

struct alignas(16) Four {
  float v[4];
};
TROUPE_HOST_DEVICE Four four_at(const float* at) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const Four*>(at);
#else
  Four four;
  std::memcpy(&four, at, sizeof four);
  return four;
#endif
}

// Floats from row to row of a tile in shared memory: rows begin at 16 bytes, and eight rows at the
// same column lie in different banks.
TROUPE_HOST_DEVICE int tile_stride(std::int64_t head_dim) {
  return (static_cast<int>(head_dim) + 7) / 8 * 8 + 4;
}

// Sizes of a tile. kChunks: ⌈head_dim / kHeadColumns⌉, 1, 2 or 4.
template <int kRows_, int kColumns_, int kChunks_>
struct AttentionTile {
  static constexpr int kRows = kRows_;        // of a thread
  static constexpr int kColumns = kColumns_;  // of a thread
  static constexpr int kChunks = kChunks_;
  static constexpr int kTileRows = kRows * kAttentionSide;
  static constexpr int kTileColumns = kColumns * kAttentionSide;
  static constexpr int kScoreStride = kTileColumns + 4;
};

// to row i = rows begin + i of `from`, as fp32; zeros outside [valid_begin, valid_end) and behind
// head_dim. The thread's part.
template <class T>
TROUPE_HOST_DEVICE void load_tile(int t, const T* from, std::int64_t stride, std::int64_t begin,
                                  int rows, std::int64_t valid_begin, std::int64_t valid_end,
                                  std::int64_t head_dim, float* to) {
  constexpr int kAcross = 64;
  const int to_stride = tile_stride(head_dim);
  for (int i = t / kAcross; i < rows; i += kAttentionThreads / kAcross) {
    const std::int64_t row = begin + i;
    const bool valid = row >= valid_begin && row < valid_end;
    const T* source = from + row * stride;
    for (int d = t % kAcross; d < to_stride; d += kAcross)
      to[i * to_stride + d] = valid && d < head_dim ? widen(source[d]) : 0.0f;
  }
}

// products[i][j] = rows[y·kRows + i]·columns[x + 16·j] over the head.
template <class Tile>
TROUPE_HOST_DEVICE void multiply_tiles(int t, const float* rows, const float* columns,
                                       std::int64_t head_dim,
                                       float (&products)[Tile::kRows][Tile::kColumns]) {
  const int stride = tile_stride(head_dim);
  const float* mine = rows + t / kAttentionSide * Tile::kRows * stride;
  const float* theirs = columns + t % kAttentionSide * stride;
  TROUPE_UNROLL
  for (int i = 0; i < Tile::kRows; ++i) {
    TROUPE_UNROLL
    for (int j = 0; j < Tile::kColumns; ++j) products[i][j] = 0.0f;
  }
  for (int d = 0; d < head_dim; d += 4) {  // zeros behind the head
    Four a[Tile::kRows];
    TROUPE_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) a[i] = four_at(mine + i * stride + d);
    TROUPE_UNROLL
    for (int j = 0; j < Tile::kColumns; ++j) {
      const Four b = four_at(theirs + j * kAttentionSide * stride + d);
      TROUPE_UNROLL
      for (int i = 0; i < Tile::kRows; ++i) {
        TROUPE_UNROLL
        for (int k = 0; k < 4; ++k) products[i][j] = fmaf(a[i].v[k], b.v[k], products[i][j]);
      }
    }
  }
}

// A thread's sums over columns of rows of the head.
template <class Tile>
struct HeadSums {
  float v[Tile::kRows][Tile::kChunks][4];
};

template <class Tile>
TROUPE_HOST_DEVICE void clear(HeadSums<Tile>& sums) {
  TROUPE_UNROLL
  for (int i = 0; i < Tile::kRows; ++i) {
    TROUPE_UNROLL
    for (int c = 0; c < Tile::kChunks; ++c) {
      TROUPE_UNROLL
      for (int k = 0; k < 4; ++k) sums.v[i][c][k] = 0.0f;
    }
  }
}

// Where chunk c of the thread lies in a head.
TROUPE_HOST_DEVICE int head_column(int t, int chunk) {
  return t % kAttentionSide * 4 + chunk * kHeadColumns;
}

// sums row i += Σ over the tile's columns, in order, of scores[row][column]·columns[column].
template <class Tile>
TROUPE_HOST_DEVICE void accumulate(int t, const float* scores, const float* columns,
                                   std::int64_t head_dim, HeadSums<Tile>& sums) {
  const int stride = tile_stride(head_dim);
  const float* mine = scores + t / kAttentionSide * Tile::kRows * Tile::kScoreStride;
  for (int column = 0; column < Tile::kTileColumns; column += 4) {
    Four weight[Tile::kRows];
    TROUPE_UNROLL
    for (int i = 0; i < Tile::kRows; ++i)
      weight[i] = four_at(mine + i * Tile::kScoreStride + column);
    TROUPE_UNROLL
    for (int k = 0; k < 4; ++k) {
      TROUPE_UNROLL
      for (int c = 0; c < Tile::kChunks; ++c) {
        const int at = head_column(t, c);
        if (at >= head_dim) continue;
        const Four value = four_at(columns + (column + k) * stride + at);
        TROUPE_UNROLL
        for (int i = 0; i < Tile::kRows; ++i) {
          TROUPE_UNROLL
          for (int n = 0; n < 4; ++n)
            sums.v[i][c][n] = fmaf(weight[i].v[k], value.v[n], sums.v[i][c][n]);
        }
      }
    }
  }
}

// to row `row` = factor·the sums of the thread's row i.
template <class Tile, class T>
TROUPE_HOST_DEVICE void store_sums(int t, int i, const HeadSums<Tile>& sums, float factor,
                                   std::int64_t head_dim, T* to) {
  TROUPE_UNROLL
  for (int c = 0; c < Tile::kChunks; ++c) {
    TROUPE_UNROLL
    for (int n = 0; n < 4; ++n) {
      const int at = head_column(t, c) + n;
      if (at < head_dim) to[at] = narrow<T>(sums.v[i][c][n] * factor);
    }
  }
}

// Kernels that drop out weights have one argument more, a Dropout, than those that do not, whose
// code stays as if there were none.

// Which of a tile's keys stay in which of its queries' weights, in shared memory: bit i of byte
// [query][group] is about key 8·group + i of the tile.
template <int kQueries, int kKeys>
struct DropoutTile {
  static constexpr int kGroups = kKeys / kDropoutColumns;
  static constexpr std::int64_t kFloats = kQueries * kGroups / 4;
  using Bytes = unsigned char;

  // The thread's part. `past`: keys before the first query.
  TROUPE_HOST_DEVICE static void draw(int t, const Dropout& d, std::int64_t head,
                                      std::int64_t batch_row, std::int64_t queries,
                                      std::int64_t past, std::int64_t first_query,
                                      std::int64_t first_key, Bytes* kept) {
    const std::uint32_t site = d.site | static_cast<std::uint32_t>(head);
    for (int i = t; i < kQueries * kGroups; i += kAttentionThreads) {
      const std::int64_t query = first_query + i / kGroups;
      std::uint32_t bits = 0;
      if (query < queries) {
        const std::int64_t row = batch_row * queries + query;
        const auto sample = static_cast<std::uint32_t>(d.samples[row]);
        const auto token = static_cast<std::uint32_t>(d.tokens[row]);
        // Columns are places in the query's sample, which may begin anywhere: two groups of them
        // meet in eight keys.
        const auto place = static_cast<std::uint32_t>(first_key + i % kGroups * kDropoutColumns -
                                                      past - query + d.tokens[row]);
        const std::uint32_t shift = place % kDropoutColumns;
        bits = dropout_kept(
                   dropout_words(d.seed, d.epoch, site, sample, token, place / kDropoutColumns),
                   d.threshold) >>
               shift;
        if (shift != 0)
          bits |= dropout_kept(dropout_words(d.seed, d.epoch, site, sample, token,
                                             (place + kDropoutColumns) / kDropoutColumns),
                               d.threshold)
                  << (kDropoutColumns - shift);
      }
      kept[i] = static_cast<Bytes>(bits);
    }
  }
  // x under the dropout.
  TROUPE_HOST_DEVICE static float dropped(const Dropout& d, const Bytes* kept, int query, int key,
                                          float x) {
    const unsigned bits = kept[query * kGroups + key / kDropoutColumns];
    return bits >> key % kDropoutColumns & 1u ? x * d.scale : 0.0f;
  }
};

template <class T>
struct AttentionForward {
  const T* q;
  const T* k;
  const T* v;
  T* out;
  float* log_sum_exp;  // or null
  const std::int32_t* first_key;
  std::int64_t batch, query_length, key_length, query_heads, key_heads, head_dim;
  std::int64_t query_stride, key_stride, key_batch_stride;
  float scale;
};

// Shared memory of the forward pass, by offsets in floats.
template <class Tile>
struct ForwardShared {
  TROUPE_HOST_DEVICE explicit ForwardShared(float* memory, std::int64_t head_dim)
      : queries(memory),
        keys(queries + Tile::kTileRows * tile_stride(head_dim)),
        scores(keys + Tile::kTileColumns * tile_stride(head_dim)),
        parts(scores + Tile::kTileRows * Tile::kScoreStride),
        greatest(parts + Tile::kTileRows * kAttentionSide),
        sum(greatest + Tile::kTileRows),
        fade(sum + Tile::kTileRows),
        kept(reinterpret_cast<unsigned char*>(fade + Tile::kTileRows)) {}
  static std::int64_t floats(std::int64_t head_dim, bool drops = false) {
    return (Tile::kTileRows + Tile::kTileColumns) * tile_stride(head_dim) +
           Tile::kTileRows * (Tile::kScoreStride + kAttentionSide + 3) +
           (drops ? Mask::kFloats : 0);
  }
  using Mask = DropoutTile<Tile::kTileRows, Tile::kTileColumns>;
  float* queries;
  float* keys;  // then values
  float* scores;
  float* parts;     // (rows, 16): of the threads of a row
  float* greatest;  // of each row, so far
  float* sum;
  float* fade;          // what sums so far are multiplied with
  unsigned char* kept;  // Mask's; there where the kernel drops out
};

// Block (tile of queries, query head, batch row). Weights that are dropped out count in the
// softmax's sum, not in what is added to the result.
template <class T, class Tile, class... Drop>
TROUPE_HOST_DEVICE void attention_forward_block(const AttentionBlock& block, float* memory,
                                                const AttentionForward<T>& a,
                                                const Drop&... dropout) {
  constexpr bool kDrops = sizeof...(Drop) > 0;
  const ForwardShared<Tile> s(memory, a.head_dim);
  const std::int64_t first_query = block.x * Tile::kTileRows;
  const std::int64_t queries = a.query_length - first_query < Tile::kTileRows
                                   ? a.query_length - first_query
                                   : Tile::kTileRows;
  const std::int64_t key_head = block.y / (a.query_heads / a.key_heads);
  const T* q = a.q + block.z * a.query_length * a.query_stride + block.y * a.head_dim;
  const T* k = a.k + block.z * a.key_batch_stride + key_head * a.head_dim;
  const T* v = a.v + block.z * a.key_batch_stride + key_head * a.head_dim;
  const auto seen = [&](std::int64_t query) {
    return keys_seen(a.first_key, block.z, query, a.query_length, a.key_length);
  };
  // first_key does not fall: the tile's first row sees the first key, its last row the last one.
  const std::int64_t begin = seen(first_query).first;
  const std::int64_t end = seen(first_query + queries - 1).end;

  PerThread<HeadSums<Tile>, kAttentionThreads> sums;
  block.phase([&](int t) {
    load_tile(t, q, a.query_stride, first_query, Tile::kTileRows, 0, a.query_length, a.head_dim,
              s.queries);
    if (t < Tile::kTileRows) s.greatest[t] = kNothingSeen, s.sum[t] = 0.0f;
    clear(sums[t]);
  });
  // Tiles of keys begin at multiples of their size.
  for (std::int64_t key = begin / Tile::kTileColumns * Tile::kTileColumns; key < end;
       key += Tile::kTileColumns) {
    block.phase([&](int t) {
      load_tile(t, k, a.key_stride, key, Tile::kTileColumns, begin, end, a.head_dim, s.keys);
      if constexpr (kDrops)
        ForwardShared<Tile>::Mask::draw(t, dropout..., block.y, block.z, a.query_length,
                                        a.key_length - a.query_length, first_query, key, s.kept);
    });
    block.phase([&](int t) {
      float products[Tile::kRows][Tile::kColumns];
      multiply_tiles<Tile>(t, s.queries, s.keys, a.head_dim, products);
      TROUPE_UNROLL
      for (int i = 0; i < Tile::kRows; ++i) {
        const int row = t / kAttentionSide * Tile::kRows + i;
        const KeyRange range = row < queries ? seen(first_query + row) : KeyRange{0, 0};
        float greatest = kNothingSeen;
        TROUPE_UNROLL
        for (int j = 0; j < Tile::kColumns; ++j) {
          const int column = t % kAttentionSide + j * kAttentionSide;
          const bool sees = key + column >= range.first && key + column < range.end;
          const float score = sees ? products[i][j] * a.scale : kNothingSeen;
          s.scores[row * Tile::kScoreStride + column] = score;
          greatest = fmaxf(greatest, score);
        }
        s.parts[row * kAttentionSide + t % kAttentionSide] = greatest;
      }
    });
    block.phase([&](int t) {
      load_tile(t, v, a.key_stride, key, Tile::kTileColumns, begin, end, a.head_dim, s.keys);
      if (t >= Tile::kTileRows) return;
      float greatest = s.greatest[t];
      for (int i = 0; i < kAttentionSide; ++i)
        greatest = fmaxf(greatest, s.parts[t * kAttentionSide + i]);
      // A row that has seen nothing yet has nothing to fade.
      s.fade[t] = s.greatest[t] == kNothingSeen ? 0.0f : expf(s.greatest[t] - greatest);
      s.greatest[t] = greatest;
    });
    block.phase([&](int t) {
      TROUPE_UNROLL
      for (int i = 0; i < Tile::kRows; ++i) {
        const int row = t / kAttentionSide * Tile::kRows + i;
        const float greatest = s.greatest[row];
        float sum = 0.0f;
        TROUPE_UNROLL
        for (int j = 0; j < Tile::kColumns; ++j) {
          const int column = t % kAttentionSide + j * kAttentionSide;
          float& score = s.scores[row * Tile::kScoreStride + column];
          score = score == kNothingSeen ? 0.0f : expf(score - greatest);
          sum += score;
          if constexpr (kDrops)
            score = ForwardShared<Tile>::Mask::dropped(dropout..., s.kept, row, column, score);
        }
        s.parts[row * kAttentionSide + t % kAttentionSide] = sum;
      }
    });
    block.phase([&](int t) {
      HeadSums<Tile>& mine = sums[t];
      TROUPE_UNROLL
      for (int i = 0; i < Tile::kRows; ++i) {
        const float fade = s.fade[t / kAttentionSide * Tile::kRows + i];
        TROUPE_UNROLL
        for (int c = 0; c < Tile::kChunks; ++c) {
          TROUPE_UNROLL
          for (int n = 0; n < 4; ++n) mine.v[i][c][n] *= fade;
        }
      }
      accumulate<Tile>(t, s.scores, s.keys, a.head_dim, mine);
      if (t >= Tile::kTileRows) return;
      float sum = s.sum[t] * s.fade[t];
      for (int i = 0; i < kAttentionSide; ++i) sum += s.parts[t * kAttentionSide + i];
      s.sum[t] = sum;
    });
  }
  block.phase([&](int t) {
    TROUPE_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      const int row = t / kAttentionSide * Tile::kRows + i;
      if (row >= queries) continue;
      const std::int64_t query = block.z * a.query_length + first_query + row;
      // A row that sees no key is zeros; a NaN in its sum stays.
      const float factor = s.sum[row] == 0.0f ? 0.0f : 1.0f / s.sum[row];
      store_sums<Tile>(t, i, sums[t], factor, a.head_dim,
                       a.out + (query * a.query_heads + block.y) * a.head_dim);
      if (a.log_sum_exp && t % kAttentionSide == 0) {
        const std::int64_t head = block.z * a.query_heads + block.y;
        a.log_sum_exp[head * a.query_length + first_query + row] =
            logf(s.sum[row]) + s.greatest[row];
      }
    }
  });
}

template <class T>
struct AttentionBackward {
  const T* q;
  const T* k;
  const T* v;
  const T* out;
  const T* dout;
  const float* log_sum_exp;
  float* deltas;  // (batch, query_heads, length): Σ dO·O of a query
  T* dq;
  T* dk;
  T* dv;
  const std::int32_t* first_key;
  std::int64_t batch, length, query_heads, key_heads, head_dim;
  std::int64_t query_stride, key_stride, key_batch_stride;
  float scale;
};

inline constexpr int kDeltaThreads = 16;  // of a query's head
inline constexpr int kDeltasPerBlock = kAttentionThreads / kDeltaThreads;
struct DeltaShared {
  float values[sum_groups_room(kAttentionThreads, kDeltaThreads)];
};

// Heads block.x·kDeltasPerBlock and on, of all queries' heads in order.
template <class T>
TROUPE_HOST_DEVICE void attention_deltas_block(const AttentionBlock& block, DeltaShared& shared,
                                               const AttentionBackward<T>& a) {
  const std::int64_t count = a.batch * a.length * a.query_heads;
  PerThread<float, kAttentionThreads> total;
  block.phase([&](int t) {
    const std::int64_t at = block.x * kDeltasPerBlock + t / kDeltaThreads;
    float sum = 0.0f;
    if (at < count)
      for (std::int64_t d = t % kDeltaThreads; d < a.head_dim; d += kDeltaThreads)
        sum = fmaf(widen(a.dout[at * a.head_dim + d]), widen(a.out[at * a.head_dim + d]), sum);
    total[t] = sum;
  });
  sum_groups<kDeltaThreads>(block, shared.values, total);
  block.phase([&](int t) {
    const std::int64_t at = block.x * kDeltasPerBlock + t / kDeltaThreads;
    if (t % kDeltaThreads != 0 || at >= count) return;
    const std::int64_t query = at / a.query_heads, head = at % a.query_heads;
    const std::int64_t row = query / a.length * a.query_heads + head;
    a.deltas[row * a.length + query % a.length] = total[t];
  });
}

// A thread's scores of a tile.
template <class Tile>
struct TileScores {
  float v[Tile::kRows][Tile::kColumns];
};

// Shared memory of either backward pass.
template <class Tile>
struct BackwardShared {
  TROUPE_HOST_DEVICE explicit BackwardShared(float* memory, std::int64_t head_dim)
      : rows{memory, memory + Tile::kTileRows * tile_stride(head_dim)},
        columns{rows[1] + Tile::kTileRows * tile_stride(head_dim),
                rows[1] + (Tile::kTileRows + Tile::kTileColumns) * tile_stride(head_dim)},
        scores(columns[1] + Tile::kTileColumns * tile_stride(head_dim)),
        kept(reinterpret_cast<unsigned char*>(scores + Tile::kTileRows * Tile::kScoreStride)) {}
  static std::int64_t floats(std::int64_t head_dim, bool drops = false) {
    return 2 * (Tile::kTileRows + Tile::kTileColumns) * tile_stride(head_dim) +
           Tile::kTileRows * Tile::kScoreStride + (drops ? ByQuery::kFloats : 0);
  }
  // Masks of tiles whose rows are queries, or keys.
  using ByQuery = DropoutTile<Tile::kTileRows, Tile::kTileColumns>;
  using ByKey = DropoutTile<Tile::kTileColumns, Tile::kTileRows>;
  float* rows[2];       // keys and values, or queries and dO
  float* columns[2];    // queries and dO, or keys and values
  float* scores;        // (rows, columns): P, then dS, so that two blocks fit a multiprocessor
  unsigned char* kept;  // a mask; there where the kernel drops out
};

// Where a query head of a batch row lies, and its key head.
template <class T>
struct HeadPlace {
  TROUPE_HOST_DEVICE HeadPlace(const AttentionBackward<T>& a, std::int64_t batch_row,
                               std::int64_t head)
      : queries(batch_row * a.length * a.query_stride + head * a.head_dim),
        outputs((batch_row * a.length * a.query_heads + head) * a.head_dim),
        keys(batch_row * a.key_batch_stride + head / (a.query_heads / a.key_heads) * a.head_dim),
        statistics((batch_row * a.query_heads + head) * a.length) {}
  std::int64_t queries, outputs, keys, statistics;  // elements from the beginning
};

// P and dS of a query and a key from their products. Under a dropout's mask M: dov is (dO·V)∘M, and
// it is P∘M that dv is made of.
struct ScoreGradient {
  float p, ds;
};
template <class T>
TROUPE_HOST_DEVICE ScoreGradient score_gradient(const AttentionBackward<T>& a,
                                                const HeadPlace<T>& place, std::int64_t batch_row,
                                                std::int64_t query, std::int64_t key, float qk,
                                                float dov) {
  if (query >= a.length || key >= a.length) return {0.0f, 0.0f};
  const KeyRange range = keys_seen(a.first_key, batch_row, query, a.length, a.length);
  // What is not seen must not become a NaN here.
  if (key < range.first || key >= range.end) return {0.0f, 0.0f};
  const float p = expf(qk * a.scale - a.log_sum_exp[place.statistics + query]);
  return {p, p * (dov - a.deltas[place.statistics + query]) * a.scale};
}

// dk and dv. Block (tile of keys, key head, batch row); queries of all heads of the group, in
// order.
template <class T, class Tile, class... Drop>
TROUPE_HOST_DEVICE void attention_keys_block(const AttentionBlock& block, float* memory,
                                             const AttentionBackward<T>& a,
                                             const Drop&... dropout) {
  constexpr bool kDrops = sizeof...(Drop) > 0;
  const BackwardShared<Tile> s(memory, a.head_dim);
  const std::int64_t first_key = block.x * Tile::kTileRows;
  const std::int64_t end_key =
      first_key + Tile::kTileRows < a.length ? first_key + Tile::kTileRows : a.length;
  const std::int64_t ratio = a.query_heads / a.key_heads;
  const std::int64_t keys_at = HeadPlace<T>(a, block.z, block.y * ratio).keys;
  PerThread<HeadSums<Tile>, kAttentionThreads> dk, dv;
  PerThread<TileScores<Tile>, kAttentionThreads> ds;
  block.phase([&](int t) {
    load_tile(t, a.k + keys_at, a.key_stride, first_key, Tile::kTileRows, 0, a.length, a.head_dim,
              s.rows[0]);
    load_tile(t, a.v + keys_at, a.key_stride, first_key, Tile::kTileRows, 0, a.length, a.head_dim,
              s.rows[1]);
    clear(dk[t]);
    clear(dv[t]);
  });
  for (std::int64_t head = block.y * ratio; head < (block.y + 1) * ratio; ++head) {
    const HeadPlace<T> place(a, block.z, head);
    // Earlier queries see none of these keys.
    for (std::int64_t query = first_key / Tile::kTileColumns * Tile::kTileColumns; query < a.length;
         query += Tile::kTileColumns) {
      // Nor do this tile's queries and all behind it, once their first key lies behind.
      if (keys_seen(a.first_key, block.z, query, a.length, a.length).first >= end_key) break;
      block.phase([&](int t) {
        load_tile(t, a.q + place.queries, a.query_stride, query, Tile::kTileColumns, 0, a.length,
                  a.head_dim, s.columns[0]);
        load_tile(t, a.dout + place.outputs, a.query_heads * a.head_dim, query, Tile::kTileColumns,
                  0, a.length, a.head_dim, s.columns[1]);
        if constexpr (kDrops)
          BackwardShared<Tile>::ByKey::draw(t, dropout..., head, block.z, a.length, 0, query,
                                            first_key, s.kept);
      });
      block.phase([&](int t) {
        float scores[Tile::kRows][Tile::kColumns], dp[Tile::kRows][Tile::kColumns];
        multiply_tiles<Tile>(t, s.rows[0], s.columns[0], a.head_dim, scores);
        multiply_tiles<Tile>(t, s.rows[1], s.columns[1], a.head_dim, dp);
        TROUPE_UNROLL
        for (int i = 0; i < Tile::kRows; ++i) {
          const int row = t / kAttentionSide * Tile::kRows + i;
          TROUPE_UNROLL
          for (int j = 0; j < Tile::kColumns; ++j) {
            const int column = t % kAttentionSide + j * kAttentionSide;
            const auto under_mask = [&](float x) {
              if constexpr (kDrops)
                return BackwardShared<Tile>::ByKey::dropped(dropout..., s.kept, column, row, x);
              else
                return x;
            };
            const ScoreGradient g =
                score_gradient(a, place, block.z, query + column, first_key + row, scores[i][j],
                               under_mask(dp[i][j]));
            s.scores[row * Tile::kScoreStride + column] = under_mask(g.p);
            ds[t].v[i][j] = g.ds;
          }
        }
      });
      block.phase([&](int t) { accumulate<Tile>(t, s.scores, s.columns[1], a.head_dim, dv[t]); });
      block.phase([&](int t) {
        TROUPE_UNROLL
        for (int i = 0; i < Tile::kRows; ++i) {
          const int row = t / kAttentionSide * Tile::kRows + i;
          TROUPE_UNROLL
          for (int j = 0; j < Tile::kColumns; ++j)
            s.scores[row * Tile::kScoreStride + t % kAttentionSide + j * kAttentionSide] =
                ds[t].v[i][j];
        }
      });
      block.phase([&](int t) { accumulate<Tile>(t, s.scores, s.columns[0], a.head_dim, dk[t]); });
    }
  }
  block.phase([&](int t) {
    TROUPE_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      const std::int64_t key = first_key + t / kAttentionSide * Tile::kRows + i;
      if (key >= a.length) continue;
      store_sums<Tile>(t, i, dk[t], 1.0f, a.head_dim, a.dk + keys_at + key * a.key_stride);
      store_sums<Tile>(t, i, dv[t], 1.0f, a.head_dim, a.dv + keys_at + key * a.key_stride);
    }
  });
}

// dq. Block (tile of queries, query head, batch row).
template <class T, class Tile, class... Drop>
TROUPE_HOST_DEVICE void attention_queries_block(const AttentionBlock& block, float* memory,
                                                const AttentionBackward<T>& a,
                                                const Drop&... dropout) {
  constexpr bool kDrops = sizeof...(Drop) > 0;
  const BackwardShared<Tile> s(memory, a.head_dim);
  const std::int64_t first_query = block.x * Tile::kTileRows;
  const std::int64_t last_query =
      (first_query + Tile::kTileRows < a.length ? first_query + Tile::kTileRows : a.length) - 1;
  const std::int64_t begin = keys_seen(a.first_key, block.z, first_query, a.length, a.length).first;
  const std::int64_t end = last_query + 1;
  const HeadPlace<T> place(a, block.z, block.y);
  PerThread<HeadSums<Tile>, kAttentionThreads> dq;
  block.phase([&](int t) {
    load_tile(t, a.q + place.queries, a.query_stride, first_query, Tile::kTileRows, 0, a.length,
              a.head_dim, s.rows[0]);
    load_tile(t, a.dout + place.outputs, a.query_heads * a.head_dim, first_query, Tile::kTileRows,
              0, a.length, a.head_dim, s.rows[1]);
    clear(dq[t]);
  });
  for (std::int64_t key = begin / Tile::kTileColumns * Tile::kTileColumns; key < end;
       key += Tile::kTileColumns) {
    block.phase([&](int t) {
      load_tile(t, a.k + place.keys, a.key_stride, key, Tile::kTileColumns, begin, end, a.head_dim,
                s.columns[0]);
      load_tile(t, a.v + place.keys, a.key_stride, key, Tile::kTileColumns, begin, end, a.head_dim,
                s.columns[1]);
      if constexpr (kDrops)
        BackwardShared<Tile>::ByQuery::draw(t, dropout..., block.y, block.z, a.length, 0,
                                            first_query, key, s.kept);
    });
    block.phase([&](int t) {
      float scores[Tile::kRows][Tile::kColumns], dp[Tile::kRows][Tile::kColumns];
      multiply_tiles<Tile>(t, s.rows[0], s.columns[0], a.head_dim, scores);
      multiply_tiles<Tile>(t, s.rows[1], s.columns[1], a.head_dim, dp);
      TROUPE_UNROLL
      for (int i = 0; i < Tile::kRows; ++i) {
        const int row = t / kAttentionSide * Tile::kRows + i;
        TROUPE_UNROLL
        for (int j = 0; j < Tile::kColumns; ++j) {
          const int column = t % kAttentionSide + j * kAttentionSide;
          float dov = dp[i][j];
          if constexpr (kDrops)
            dov = BackwardShared<Tile>::ByQuery::dropped(dropout..., s.kept, row, column, dov);
          const ScoreGradient g =
              score_gradient(a, place, block.z, first_query + row, key + column, scores[i][j], dov);
          s.scores[row * Tile::kScoreStride + column] = g.ds;
        }
      }
    });
    block.phase([&](int t) { accumulate<Tile>(t, s.scores, s.columns[0], a.head_dim, dq[t]); });
  }
  block.phase([&](int t) {
    TROUPE_UNROLL
    for (int i = 0; i < Tile::kRows; ++i) {
      const std::int64_t query = first_query + t / kAttentionSide * Tile::kRows + i;
      if (query < a.length)
        store_sums<Tile>(t, i, dq[t], 1.0f, a.head_dim,
                         a.dq + place.queries + query * a.query_stride);
    }
  });
}

}  // namespace troupe::train::cuda

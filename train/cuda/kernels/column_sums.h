#pragma once
// Sums down columns: gradients of weights and biases. Fixed blocks of rows are summed apart, then
// their sums in order: two passes, the same bits every time.

#include <cstdint>

#include "train/cuda/kernels/arithmetic.h"
#include "train/cuda/kernels/block.h"
#include "train/cuda/kernels/packs.h"

namespace troupe::train::cuda {

inline constexpr int kColumnThreads = 256;
using ColumnBlock = Block<kColumnThreads>;

// How `rows` rows of `width` columns are cut: a function of both alone.
struct RowParts {
  std::int64_t rows_per_part, count;
};
TROUPE_HOST_DEVICE RowParts row_parts(std::int64_t rows, std::int64_t width) {
  // About two thousand blocks keep a GPU busy; a part's sums must be few beside its rows.
  constexpr std::int64_t kBlocks = 2048, kColumnsPerBlock = 256, kRowsMin = 32;
  constexpr std::int64_t kPartsMin = 16, kPartsMax = 512;
  const std::int64_t strips = (width + kColumnsPerBlock - 1) / kColumnsPerBlock;
  std::int64_t parts = kBlocks / strips;
  parts = parts < kPartsMin ? kPartsMin : parts > kPartsMax ? kPartsMax : parts;
  std::int64_t each = (rows + parts - 1) / parts;
  if (each < kRowsMin) each = kRowsMin;
  return {each, (rows + each - 1) / each};
}

// What is summed. Where heads lie side by side in a row, each of them counts as a row.
enum class ColumnTerm {
  kPlain,  // dy
  kRms,    // dy·(x·rstd)
  kLayer   // dy·((x − mean)·rstd), and dy besides
};
constexpr int column_sets(ColumnTerm term) { return term == ColumnTerm::kLayer ? 2 : 1; }

template <class T>
struct ColumnSums {
  const T* dy;
  std::int64_t stride;  // of whole rows
  const T* x;
  std::int64_t x_stride;
  const float* mean;
  const float* rstd;
  std::int64_t rows;   // rows·heads
  std::int64_t heads;  // 1: rows are no heads
  std::int64_t width;
  RowParts parts;
  std::int64_t lanes;  // threads side by side: a power of two ≤ 32; the others take further rows
  float* sums;         // (sets, parts, width)
};

// Threads side by side for packs of N.
inline std::int64_t column_lanes(std::int64_t width, int n) {
  std::int64_t lanes = 32;
  while (lanes > 1 && lanes / 2 * n >= width) lanes /= 2;
  return lanes;
}

template <int N, int kSets>
struct ColumnShared {
  float sums[kSets][kColumnThreads * N];
};

// Columns block.x·lanes·N and on, rows of part block.y.
template <class T, int N, ColumnTerm kTerm>
TROUPE_HOST_DEVICE void column_sums_block(const ColumnBlock& block,
                                          ColumnShared<N, column_sets(kTerm)>& shared,
                                          const ColumnSums<T>& a) {
  constexpr int kSets = column_sets(kTerm);
  const int lanes = static_cast<int>(a.lanes);
  const int strands = kColumnThreads / lanes;
  const std::int64_t first_column = block.x * lanes * N;
  const std::int64_t begin = block.y * a.parts.rows_per_part;
  const std::int64_t end =
      begin + a.parts.rows_per_part < a.rows ? begin + a.parts.rows_per_part : a.rows;
  block.phase([&](int t) {
    float sums[kSets][N];
    TROUPE_UNROLL
    for (int set = 0; set < kSets; ++set) {
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) sums[set][k] = 0.0f;
    }
    const std::int64_t column = first_column + t % lanes * N;
    if (column < a.width) {
      for (std::int64_t row = begin + t / lanes; row < end; row += strands) {
        const RowColumn at = a.heads == 1 ? RowColumn{row, 0} : row_column(row, a.heads);
        float d[N];
        load_pack<N>(a.dy + at.row * a.stride + at.column * a.width + column, d);
        if constexpr (kTerm == ColumnTerm::kPlain) {
          TROUPE_UNROLL
          for (int k = 0; k < N; ++k) sums[0][k] += d[k];
        } else {
          float v[N];
          load_pack<N>(a.x + at.row * a.x_stride + at.column * a.width + column, v);
          const float r = a.rstd[row];
          if constexpr (kTerm == ColumnTerm::kRms) {
            TROUPE_UNROLL
            for (int k = 0; k < N; ++k) sums[0][k] += d[k] * (v[k] * r);
          } else {
            const float m = a.mean[row];
            TROUPE_UNROLL
            for (int k = 0; k < N; ++k) {
              sums[0][k] += d[k] * ((v[k] - m) * r);
              sums[1][k] += d[k];
            }
          }
        }
      }
    }
    // Strand by strand, columns side by side.
    TROUPE_UNROLL
    for (int set = 0; set < kSets; ++set) {
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) shared.sums[set][t * N + k] = sums[set][k];
    }
  });
  block.phase([&](int t) {
    for (int set = 0; set < kSets; ++set) {
      for (int c = t; c < lanes * N; c += kColumnThreads) {
        if (first_column + c >= a.width) continue;
        float sum = 0.0f;
        for (int strand = 0; strand < strands; ++strand)
          sum += shared.sums[set][strand * lanes * N + c];
        a.sums[(set * a.parts.count + block.y) * a.width + first_column + c] = sum;
      }
    }
  });
}

struct AddParts {
  const float* sums;  // (parts, width)
  std::int64_t parts, width;
  float* out;
};

inline constexpr int kPartLanes = 32;
struct AddPartsShared {
  float sums[kColumnThreads];
};

// out[c] += the parts' sums of column c, for columns block.x·kPartLanes and on.
TROUPE_HOST_DEVICE void add_parts_block(const ColumnBlock& block, AddPartsShared& shared,
                                        const AddParts& a) {
  constexpr int kStrands = kColumnThreads / kPartLanes;
  block.phase([&](int t) {
    const std::int64_t column = block.x * kPartLanes + t % kPartLanes;
    float sum = 0.0f;
    if (column < a.width)
      for (std::int64_t part = t / kPartLanes; part < a.parts; part += kStrands)
        sum += a.sums[part * a.width + column];
    shared.sums[t] = sum;
  });
  block.phase([&](int t) {
    const std::int64_t column = block.x * kPartLanes + t;
    if (t >= kPartLanes || column >= a.width) return;
    float sum = shared.sums[t];
    TROUPE_UNROLL
    for (int strand = 1; strand < kStrands; ++strand) sum += shared.sums[strand * kPartLanes + t];
    a.out[column] += sum;
  });
}

}  // namespace troupe::train::cuda

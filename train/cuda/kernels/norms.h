#pragma once
// Norms over rows: a block for each row, or a few threads for each head. Shapes and meanings are
// those of train/tensor/operators.h. T: float or Bf16. N: kPack or 1.
//
// Rows are read again instead of kept: the second time they come from the L1 cache.

#include <cstdint>

#include "train/cuda/kernels/arithmetic.h"
#include "train/cuda/kernels/block.h"
#include "train/cuda/kernels/packs.h"

namespace troupe::train::cuda {

inline constexpr int kNormThreads = 128;
using NormBlock = Block<kNormThreads>;

template <class V>
struct NormShared {
  V values[sum_groups_room(kNormThreads, kNormThreads)];
};

// Calls part(column) for the packs of a row that are the thread's.
template <int N, class F>
TROUPE_HOST_DEVICE void for_columns(int thread, int threads, std::int64_t width, F&& part) {
  for (std::int64_t c = std::int64_t{thread} * N; c < width; c += std::int64_t{threads} * N)
    part(c);
}

template <class T>
struct RmsForward {
  const T* x;
  const T* delta;  // or null: sum is not written
  const float* weight;
  T* sum;
  T* y;
  float* rstd;
  std::int64_t rows, width;
  float eps;
};

template <class T, int N>
TROUPE_HOST_DEVICE void rms_forward_row(const NormBlock& block, NormShared<float>& shared,
                                        const RmsForward<T>& a) {
  const std::int64_t row = block.x * a.width;
  PerThread<float, kNormThreads> total;
  block.phase([&](int t) {
    float squares = 0.0f;
    for_columns<N>(t, kNormThreads, a.width, [&](std::int64_t c) {
      float v[N];
      load_pack<N>(a.x + row + c, v);
      if (a.delta) {
        float d[N];
        load_pack<N>(a.delta + row + c, d);
        TROUPE_UNROLL
        for (int k = 0; k < N; ++k) v[k] = v[k] + d[k];
        store_pack<N>(v, a.sum + row + c);
        round_pack<T>(v);
      }
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) squares += v[k] * v[k];
    });
    total[t] = squares;
  });
  sum_groups<kNormThreads>(block, shared.values, total);
  const T* from = a.delta ? a.sum : a.x;
  block.phase([&](int t) {
    const float r = reciprocal_root(total[t] / static_cast<float>(a.width), a.eps);
    if (t == 0) a.rstd[block.x] = r;
    for_columns<N>(t, kNormThreads, a.width, [&](std::int64_t c) {
      float v[N], w[N];
      load_pack<N>(from + row + c, v);
      load_pack<N>(a.weight + c, w);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) v[k] = rms_normed(v[k], r, w[k]);
      store_pack<N>(v, a.y + row + c);
    });
  });
}

template <class T>
struct RmsBackward {
  const T* dy;
  const T* x;
  const float* weight;
  const float* rstd;
  T* dx;
  std::int64_t rows, width;
};

// With r = rstd and g = dy·w: dx += r·g − x·r³·mean(g·x).
template <class T, int N>
TROUPE_HOST_DEVICE void rms_backward_row(const NormBlock& block, NormShared<float>& shared,
                                         const RmsBackward<T>& a) {
  const std::int64_t row = block.x * a.width;
  PerThread<float, kNormThreads> total;
  block.phase([&](int t) {
    float products = 0.0f;
    for_columns<N>(t, kNormThreads, a.width, [&](std::int64_t c) {
      float d[N], v[N], w[N];
      load_pack<N>(a.dy + row + c, d);
      load_pack<N>(a.x + row + c, v);
      load_pack<N>(a.weight + c, w);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) products += d[k] * w[k] * v[k];
    });
    total[t] = products;
  });
  sum_groups<kNormThreads>(block, shared.values, total);
  block.phase([&](int t) {
    const float r = a.rstd[block.x];
    const float mean = total[t] / static_cast<float>(a.width) * r * r;
    for_columns<N>(t, kNormThreads, a.width, [&](std::int64_t c) {
      float d[N], v[N], w[N], out[N];
      load_pack<N>(a.dy + row + c, d);
      load_pack<N>(a.x + row + c, v);
      load_pack<N>(a.weight + c, w);
      load_pack<N>(a.dx + row + c, out);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) out[k] += rms_gradient(d[k], v[k], w[k], r, mean);
      store_pack<N>(out, a.dx + row + c);
    });
  });
}

template <class T>
struct LayerForward {
  const T* x;
  const float* weight;
  const float* bias;
  T* y;
  float* mean;
  float* rstd;
  std::int64_t rows, width;
  float eps;
};

// The variance in a second pass, since E[x²] − mean² cancels.
template <class T, int N>
TROUPE_HOST_DEVICE void layer_forward_row(const NormBlock& block, NormShared<float>& shared,
                                          const LayerForward<T>& a) {
  const std::int64_t row = block.x * a.width;
  const auto count = static_cast<float>(a.width);
  PerThread<float, kNormThreads> total, squares;
  block.phase([&](int t) {
    float sum = 0.0f;
    for_columns<N>(t, kNormThreads, a.width, [&](std::int64_t c) {
      float v[N];
      load_pack<N>(a.x + row + c, v);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) sum += v[k];
    });
    total[t] = sum;
  });
  sum_groups<kNormThreads>(block, shared.values, total);
  block.phase([&](int t) {
    const float m = total[t] / count;
    float sum = 0.0f;
    for_columns<N>(t, kNormThreads, a.width, [&](std::int64_t c) {
      float v[N];
      load_pack<N>(a.x + row + c, v);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) sum += (v[k] - m) * (v[k] - m);
    });
    squares[t] = sum;
  });
  sum_groups<kNormThreads>(block, shared.values, squares);
  block.phase([&](int t) {
    const float m = total[t] / count;
    const float r = reciprocal_root(squares[t] / count, a.eps);
    if (t == 0) a.mean[block.x] = m, a.rstd[block.x] = r;
    for_columns<N>(t, kNormThreads, a.width, [&](std::int64_t c) {
      float v[N], w[N], b[N];
      load_pack<N>(a.x + row + c, v);
      load_pack<N>(a.weight + c, w);
      load_pack<N>(a.bias + c, b);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) v[k] = layer_normed(v[k], m, r, w[k], b[k]);
      store_pack<N>(v, a.y + row + c);
    });
  });
}

template <class T>
struct LayerBackward {
  const T* dy;
  const T* x;
  const float* weight;
  const float* mean;
  const float* rstd;
  T* dx;
  std::int64_t rows, width;
};

// With n = (x − mean)·rstd and g = dy·w: dx += rstd·(g − mean(g) − n·mean(g·n)).
template <class T, int N>
TROUPE_HOST_DEVICE void layer_backward_row(const NormBlock& block, NormShared<TwoSums>& shared,
                                           const LayerBackward<T>& a) {
  const std::int64_t row = block.x * a.width;
  PerThread<TwoSums, kNormThreads> total;
  block.phase([&](int t) {
    const float m = a.mean[block.x], r = a.rstd[block.x];
    TwoSums sums{0.0f, 0.0f};
    for_columns<N>(t, kNormThreads, a.width, [&](std::int64_t c) {
      float d[N], v[N], w[N];
      load_pack<N>(a.dy + row + c, d);
      load_pack<N>(a.x + row + c, v);
      load_pack<N>(a.weight + c, w);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) {
        const float g = d[k] * w[k];
        sums.a += g;
        sums.b += g * ((v[k] - m) * r);
      }
    });
    total[t] = sums;
  });
  sum_groups<kNormThreads>(block, shared.values, total);
  block.phase([&](int t) {
    const float m = a.mean[block.x], r = a.rstd[block.x];
    const float mean_g = total[t].a / static_cast<float>(a.width);
    const float mean_gn = total[t].b / static_cast<float>(a.width);
    for_columns<N>(t, kNormThreads, a.width, [&](std::int64_t c) {
      float d[N], v[N], w[N], out[N];
      load_pack<N>(a.dy + row + c, d);
      load_pack<N>(a.x + row + c, v);
      load_pack<N>(a.weight + c, w);
      load_pack<N>(a.dx + row + c, out);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) out[k] += layer_gradient(d[k], v[k], w[k], m, r, mean_g, mean_gn);
      store_pack<N>(out, a.dx + row + c);
    });
  });
}

// --- heads: kHeadThreads threads each, so that a block has several.

inline constexpr int kHeadThreads = 16;
inline constexpr int kHeadsPerBlock = kNormThreads / kHeadThreads;
struct HeadShared {
  float values[sum_groups_room(kNormThreads, kHeadThreads)];
};

template <class T>
struct HeadForward {
  const T* x;
  std::int64_t x_stride;
  const float* weight;
  T* y;
  std::int64_t y_stride;
  float* rstd;
  std::int64_t rows, heads, head_dim;
  float eps;
};

// Heads block.x·kHeadsPerBlock and on, of all rows' heads in order.
template <class T, int N>
TROUPE_HOST_DEVICE void head_forward_block(const NormBlock& block, HeadShared& shared,
                                           const HeadForward<T>& a) {
  PerThread<float, kNormThreads> total;
  block.phase([&](int t) {
    total[t] = 0.0f;
    const std::int64_t head = block.x * kHeadsPerBlock + t / kHeadThreads;
    if (head >= a.rows * a.heads) return;
    const RowColumn at = row_column(head, a.heads);
    const T* from = a.x + at.row * a.x_stride + at.column * a.head_dim;
    float squares = 0.0f;
    for_columns<N>(t % kHeadThreads, kHeadThreads, a.head_dim, [&](std::int64_t c) {
      float v[N];
      load_pack<N>(from + c, v);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) squares += v[k] * v[k];
    });
    total[t] = squares;
  });
  sum_groups<kHeadThreads>(block, shared.values, total);
  block.phase([&](int t) {
    const std::int64_t head = block.x * kHeadsPerBlock + t / kHeadThreads;
    if (head >= a.rows * a.heads) return;
    const RowColumn at = row_column(head, a.heads);
    const T* from = a.x + at.row * a.x_stride + at.column * a.head_dim;
    T* to = a.y + at.row * a.y_stride + at.column * a.head_dim;
    const float r = reciprocal_root(total[t] / static_cast<float>(a.head_dim), a.eps);
    if (t % kHeadThreads == 0) a.rstd[head] = r;
    for_columns<N>(t % kHeadThreads, kHeadThreads, a.head_dim, [&](std::int64_t c) {
      float v[N], w[N];
      load_pack<N>(from + c, v);
      load_pack<N>(a.weight + c, w);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) v[k] = rms_normed(v[k], r, w[k]);
      store_pack<N>(v, to + c);
    });
  });
}

template <class T>
struct HeadBackward {
  T* dy;
  std::int64_t stride;
  const T* x;
  std::int64_t x_stride;
  const float* weight;
  const float* rstd;
  std::int64_t rows, heads, head_dim;
};

template <class T, int N>
TROUPE_HOST_DEVICE void head_backward_block(const NormBlock& block, HeadShared& shared,
                                            const HeadBackward<T>& a) {
  PerThread<float, kNormThreads> total;
  block.phase([&](int t) {
    total[t] = 0.0f;
    const std::int64_t head = block.x * kHeadsPerBlock + t / kHeadThreads;
    if (head >= a.rows * a.heads) return;
    const RowColumn at = row_column(head, a.heads);
    const T* dy = a.dy + at.row * a.stride + at.column * a.head_dim;
    const T* x = a.x + at.row * a.x_stride + at.column * a.head_dim;
    float products = 0.0f;
    for_columns<N>(t % kHeadThreads, kHeadThreads, a.head_dim, [&](std::int64_t c) {
      float d[N], v[N], w[N];
      load_pack<N>(dy + c, d);
      load_pack<N>(x + c, v);
      load_pack<N>(a.weight + c, w);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) products += d[k] * w[k] * v[k];
    });
    total[t] = products;
  });
  sum_groups<kHeadThreads>(block, shared.values, total);
  block.phase([&](int t) {
    const std::int64_t head = block.x * kHeadsPerBlock + t / kHeadThreads;
    if (head >= a.rows * a.heads) return;
    const RowColumn at = row_column(head, a.heads);
    T* dy = a.dy + at.row * a.stride + at.column * a.head_dim;
    const T* x = a.x + at.row * a.x_stride + at.column * a.head_dim;
    const float r = a.rstd[head];
    const float mean = total[t] / static_cast<float>(a.head_dim) * r * r;
    for_columns<N>(t % kHeadThreads, kHeadThreads, a.head_dim, [&](std::int64_t c) {
      float d[N], v[N], w[N];
      load_pack<N>(dy + c, d);
      load_pack<N>(x + c, v);
      load_pack<N>(a.weight + c, w);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) d[k] = rms_gradient(d[k], v[k], w[k], r, mean);
      store_pack<N>(d, dy + c);
    });
  });
}

}  // namespace troupe::train::cuda

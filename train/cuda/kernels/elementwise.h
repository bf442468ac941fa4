#pragma once
// Kernels whose threads have nothing to do with one another: thread i makes pack i of the output.
// Shapes and meanings are those of train/tensor/operators.h. T: float or Bf16. N: kPack or 1.

#include <cstdint>

#include "train/cuda/kernels/arithmetic.h"
#include "train/cuda/kernels/packs.h"
#include "train/tensor/dropout.h"

namespace troupe::train::cuda {

template <class From, class To, int N>
struct Convert {
  const From* from;
  To* to;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    float x[N];
    load_pack<N>(from + i * N, x);
    store_pack<N>(x, to + i * N);
  }
};

// `to` may be `from`.
template <int N>
struct RoundToBf16 {
  const float* from;
  float* to;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    float x[N];
    load_pack<N>(from + i * N, x);
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) x[k] = widen(nearest_bf16(x[k]));
    store_pack<N>(x, to + i * N);
  }
};

template <class T, int N>
struct Add {
  const T* a;
  const T* b;
  T* out;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    float x[N], y[N];
    load_pack<N>(a + i * N, x);
    load_pack<N>(b + i * N, y);
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) x[k] = x[k] + y[k];
    store_pack<N>(x, out + i * N);
  }
};

// A pack is a counter's columns. residual: or null; out may be x or residual.
template <class T, int N>
struct DropOut {
  static_assert(kPack == kDropoutColumns);
  Dropout dropout;
  const T* x;
  const T* residual;
  T* out;
  std::int64_t width;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    const RowColumn at = row_column(i, width / N);
    const auto column = static_cast<std::uint32_t>(at.column * N);
    const PhiloxWords words =
        dropout_words(dropout.seed, dropout.epoch, dropout.site,
                      static_cast<std::uint32_t>(dropout.samples[at.row]),
                      static_cast<std::uint32_t>(dropout.tokens[at.row]), column / kDropoutColumns);
    const std::uint32_t kept = dropout_kept(words, dropout.threshold) >> column % kDropoutColumns;
    float v[N];
    load_pack<N>(x + i * N, v);
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) v[k] = kept >> k & 1u ? v[k] * dropout.scale : 0.0f;
    if (residual) {
      float r[N];
      load_pack<N>(residual + i * N, r);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) v[k] = r[k] + v[k];
    }
    store_pack<N>(v, out + i * N);
  }
};

template <class T, int N>
struct AddBias {
  T* y;
  std::int64_t stride;
  const float* bias;
  std::int64_t width;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    const RowColumn at = row_column(i, width / N);
    T* mine = y + at.row * stride + at.column * N;
    float x[N], b[N];
    load_pack<N>(mine, x);
    load_pack<N>(bias + at.column * N, b);
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) x[k] = x[k] + b[k];
    store_pack<N>(x, mine);
  }
};

template <class T, int N>
struct ScaleColumns {
  T* y;
  std::int64_t stride;
  const float* factors;
  std::int64_t width;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    const RowColumn at = row_column(i, width / N);
    T* mine = y + at.row * stride + at.column * N;
    float x[N], f[N];
    load_pack<N>(mine, x);
    load_pack<N>(factors + at.column * N, f);
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) x[k] = x[k] * f[k];
    store_pack<N>(x, mine);
  }
};

template <class T, int N>
struct RmsApply {
  const T* x;
  const float* weight;
  const float* rstd;
  T* y;
  std::int64_t width;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    const RowColumn at = row_column(i, width / N);
    float v[N], w[N];
    load_pack<N>(x + i * N, v);
    load_pack<N>(weight + at.column * N, w);
    const float r = rstd[at.row];
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) v[k] = rms_normed(v[k], r, w[k]);
    store_pack<N>(v, y + i * N);
  }
};

template <class T, int N>
struct LayerApply {
  const T* x;
  const float* weight;
  const float* bias;
  const float* mean;
  const float* rstd;
  T* y;
  std::int64_t width;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    const RowColumn at = row_column(i, width / N);
    float v[N], w[N], b[N];
    load_pack<N>(x + i * N, v);
    load_pack<N>(weight + at.column * N, w);
    load_pack<N>(bias + at.column * N, b);
    const float m = mean[at.row], r = rstd[at.row];
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) v[k] = layer_normed(v[k], m, r, w[k], b[k]);
    store_pack<N>(v, y + i * N);
  }
};

// Pairs of packs, one of each half of a head.
template <class T, int N>
struct Rope {
  T* x;
  std::int64_t stride;
  const std::int32_t* positions;
  const float* cosine;
  const float* sine;
  std::int64_t heads, half;
  float sine_sign;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    const RowColumn at = row_column(i, heads * (half / N));
    const RowColumn in_row = row_column(at.column, half / N);  // head, pack of its half
    const std::int64_t table = positions[at.row] * half + in_row.column * N;
    T* low = x + at.row * stride + in_row.row * 2 * half + in_row.column * N;
    float a[N], b[N], c[N], s[N];
    load_pack<N>(low, a);
    load_pack<N>(low + half, b);
    load_pack<N>(cosine + table, c);
    load_pack<N>(sine + table, s);
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) {
      const Rotated turned = rotated(a[k], b[k], c[k], s[k] * sine_sign);
      a[k] = turned.low, b[k] = turned.high;
    }
    store_pack<N>(a, low);
    store_pack<N>(b, low + half);
  }
};

template <class T, int N>
struct Swiglu {
  const T* gate_up;
  T* act;
  std::int64_t width;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    const RowColumn at = row_column(i, width / N);
    const T* gate = gate_up + at.row * 2 * width + at.column * N;
    float g[N], u[N];
    load_pack<N>(gate, g);
    load_pack<N>(gate + width, u);
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) g[k] = swiglu(g[k], u[k]);
    store_pack<N>(g, act + i * N);
  }
};

template <class T, int N>
struct SwigluBackward {
  T* gate_up;
  const T* dact;
  T* act;  // or null
  std::int64_t width;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    const RowColumn at = row_column(i, width / N);
    T* gate = gate_up + at.row * 2 * width + at.column * N;
    float g[N], u[N], d[N];
    load_pack<N>(gate, g);
    load_pack<N>(gate + width, u);
    load_pack<N>(dact + i * N, d);
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) {
      const SwigluGradient gradient = swiglu_gradient(g[k], u[k], d[k]);
      g[k] = gradient.gate, u[k] = gradient.up, d[k] = gradient.act;
    }
    store_pack<N>(g, gate);
    store_pack<N>(u, gate + width);
    if (act) store_pack<N>(d, act + i * N);
  }
};

template <class T, int N>
struct Gelu {
  const T* x;
  T* act;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    float v[N];
    load_pack<N>(x + i * N, v);
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) v[k] = gelu(v[k]);
    store_pack<N>(v, act + i * N);
  }
};

template <class T, int N>
struct GeluBackward {
  T* x;
  const T* dact;
  T* act;  // or null
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    float v[N], d[N];
    load_pack<N>(x + i * N, v);
    load_pack<N>(dact + i * N, d);
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) {
      const GeluGradient gradient = gelu_gradient(v[k], d[k]);
      v[k] = gradient.x, d[k] = gradient.act;
    }
    store_pack<N>(v, x + i * N);
    if (act) store_pack<N>(d, act + i * N);
  }
};

template <class From, class T, int N>
struct EmbeddingForward {
  const std::int32_t* ids;
  const From* table;
  T* out;
  std::int64_t width;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    const RowColumn at = row_column(i, width / N);
    float v[N];
    load_pack<N>(table + ids[at.row] * width + at.column * N, v);
    store_pack<N>(v, out + i * N);
  }
};

// States of neighbouring elements as bf16 holds them, rounded randomly by (seed, flat element).
template <int N>
TROUPE_HOST_DEVICE void round_states(std::uint64_t seed, std::int64_t first, float (&p)[N],
                                     float (&m)[N], float (&v)[N]) {
  const auto round_one = [&](int k, const RoundingBits& random) {
    p[k] = widen(random_bf16(p[k], random.parameter));
    m[k] = widen(random_bf16(m[k], random.first));
    v[k] = widen(random_bf16(v[k], random.second));
  };
  if (N > 1 && (first & 1) == 0) {  // a pair has its words made once
    TROUPE_UNROLL
    for (int k = 0; k + 1 < N; k += 2) {
      const RandomWords words = philox(seed, static_cast<std::uint64_t>(first + k) >> 1);
      round_one(k, rounding_bits(words, false));
      round_one(k + 1, rounding_bits(words, true));
    }
  } else {
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) round_one(k, rounding_bits(seed, first + k));
  }
}

// The state is float or Bf16; see adamw_update of train/optimizer/adamw.h for what is rounded when.
template <class State, int N>
struct AdamW {
  State* parameters;
  const float* gradients;
  State* first_moments;
  State* second_moments;
  const float* gradient_scale;
  AdamWConstants constants;
  bool round_randomly;  // states of Bf16
  std::uint64_t seed;
  std::int64_t first_element;

  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    float p[N], g[N], m[N], v[N];
    load_pack<N>(parameters + i * N, p);
    load_pack<N>(gradients + i * N, g);
    load_pack<N>(first_moments + i * N, m);
    load_pack<N>(second_moments + i * N, v);
    const float scale = *gradient_scale;
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) {
      const AdamWElement e = adamw_updated(constants, {p[k], m[k], v[k]}, g[k] * scale);
      p[k] = e.parameter, m[k] = e.first, v[k] = e.second;
    }
    if constexpr (sizeof(State) == sizeof(Bf16)) {
      // Afterwards all values are bf16's: storing them rounds nothing.
      if (round_randomly) round_states(seed, first_element + i * N, p, m, v);
    }
    store_pack<N>(p, parameters + i * N);
    store_pack<N>(m, first_moments + i * N);
    store_pack<N>(v, second_moments + i * N);
  }
};

// out[i] = the parts' elements i, added by the fixed tree. kMax: a power of two ≥ count.
template <class T, class Out, int kMax, int N>
struct TreeSum {
  const T* parts[kMax];
  int count;
  Out* out;
  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    float x[kMax][N];
    TROUPE_UNROLL
    for (int part = 0; part < kMax; ++part)
      if (part < count) load_pack<N>(parts[part] + i * N, x[part]);
    float sums[N];
    TROUPE_UNROLL
    for (int k = 0; k < N; ++k) {
      float leaves[kMax];
      TROUPE_UNROLL
      for (int part = 0; part < kMax; ++part) leaves[part] = part < count ? x[part][k] : 0.0f;
      fold_tree(leaves, count);
      sums[k] = leaves[0];
    }
    store_pack<N>(sums, out + i * N);
  }
};

}  // namespace troupe::train::cuda

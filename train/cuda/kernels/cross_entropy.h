#pragma once
// Cross entropy of a row of logits by one block: a pass that finds maximum and sum together, and
// one that writes the gradient.

#include <cstdint>

#include "train/cuda/kernels/arithmetic.h"
#include "train/cuda/kernels/block.h"
#include "train/cuda/kernels/packs.h"

namespace troupe::train::cuda {

inline constexpr int kEntropyThreads = 512;
using EntropyBlock = Block<kEntropyThreads>;

// Σ exp(x − greatest) over some elements.
struct ExpSum {
  float greatest, sum;
};
// No element yet. Finite, so that −∞ − greatest is −∞ and no NaN.
TROUPE_HOST_DEVICE ExpSum no_exp_sum() { return {-3.402823466e+38f, 0.0f}; }
// A NaN is not seen by fmaxf; it is in the sum.
TROUPE_HOST_DEVICE ExpSum operator+(const ExpSum& a, const ExpSum& b) {
  const float greatest = fmaxf(a.greatest, b.greatest);
  return {greatest, a.sum * expf(a.greatest - greatest) + b.sum * expf(b.greatest - greatest)};
}

struct EntropyShared {
  ExpSum sums[sum_groups_room(kEntropyThreads, kEntropyThreads)];
};

template <class Gradient>
struct CrossEntropy {
  const float* logits;
  const std::int32_t* labels;
  float* losses;
  float scale;
  Gradient* gradient;  // null: none is wanted; may be the logits
  std::int64_t rows, classes;
};

template <class Gradient, int N>
TROUPE_HOST_DEVICE void cross_entropy_row(const EntropyBlock& block, EntropyShared& shared,
                                          const CrossEntropy<Gradient>& a) {
  constexpr std::int64_t kStep = kEntropyThreads * N;
  const float* logits = a.logits + block.x * a.classes;
  PerThread<ExpSum, kEntropyThreads> total;
  PerThread<float, kEntropyThreads> target;
  block.phase([&](int t) {
    ExpSum found = no_exp_sum();
    for (std::int64_t c = std::int64_t{t} * N; c < a.classes; c += kStep) {
      float v[N];
      load_pack<N>(logits + c, v);
      float greatest = found.greatest;
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) greatest = fmaxf(greatest, v[k]);
      float sum = found.sum * expf(found.greatest - greatest);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) sum += expf(v[k] - greatest);
      found = {greatest, sum};
    }
    total[t] = found;
    // Read before anything is written. A label outside of the classes is a NaN, not a fault.
    const std::int32_t label = a.labels[block.x];
    target[t] = label >= 0 && label < a.classes ? logits[label] : float_of(0x7fc00000u);
  });
  sum_groups<kEntropyThreads>(block, shared.sums, total);
  block.phase([&](int t) {
    if (t == 0) a.losses[block.x] = logf(total[t].sum) + total[t].greatest - target[t];
    if (!a.gradient) return;
    const std::int32_t label = a.labels[block.x];
    const float factor = a.scale / total[t].sum;
    Gradient* gradient = a.gradient + block.x * a.classes;
    for (std::int64_t c = std::int64_t{t} * N; c < a.classes; c += kStep) {
      float v[N];
      load_pack<N>(logits + c, v);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) {
        v[k] = expf(v[k] - total[t].greatest) * factor;
        if (c + k == label) v[k] -= a.scale;
      }
      store_pack<N>(v, gradient + c);
    }
  });
}

}  // namespace troupe::train::cuda

// GELU in its tanh form, HF's gelu_new: ½x·(1 + tanh(u)), u = √(2/π)·(x + 0.044715·x³). Since
// ½(1 + tanh(u)) = 1 / (1 + exp(−2u)), one exponential gives it without cancellation.

#include "train/cpu/exp.h"
#include "train/cpu/kernels.h"
#include "train/cpu/vectors.h"
#include "train/tensor/vectorize.h"

namespace troupe::train::kernels {
namespace {

constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

TROUPE_INLINE float gate(float x) {
  return 1.0f / (1.0f + fast_exp(-kTwoRootTwoOverPi * (x + kCubic * x * x * x)));
}
TROUPE_INLINE void gate(const Floats16& x, Floats16& out) {
  Floats16 e;
  exp_vector(-kTwoRootTwoOverPi * (x + kCubic * x * x * x), e);
  out = 1.0f / (1.0f + e);
}

}  // namespace

TROUPE_VECTORIZED
void gelu(const float* x, float* act, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Floats16 v, s;
    load_vector(x + i, v);
    gate(v, s);
    store_vector(v * s, act + i);
  }
  for (; i < count; ++i) act[i] = x[i] * gate(x[i]);
}

// d/dx x·s = s + x·s·(1 − s)·d(2u)/dx.
TROUPE_VECTORIZED
void gelu_backward(float* x, const float* dact, float* act, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Floats16 v, s, da;
    load_vector(x + i, v);
    load_vector(dact + i, da);
    gate(v, s);
    const Floats16 slope = kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * v * v);
    store_vector(da * (s + v * s * (1.0f - s) * slope), x + i);
    if (act) store_vector(v * s, act + i);
  }
  for (; i < count; ++i) {
    const float v = x[i], s = gate(v), da = dact[i];
    const float slope = kTwoRootTwoOverPi * (1.0f + 3.0f * kCubic * v * v);
    x[i] = da * (s + v * s * (1.0f - s) * slope);
    if (act) act[i] = v * s;
  }
}

}  // namespace troupe::train::kernels

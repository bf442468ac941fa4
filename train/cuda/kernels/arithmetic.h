#pragma once
// What a GPU computes for one element: each formula once, for kernels and for the tests that run
// them on the host.
//
// Formulas and their order are those of train/cpu and train/optimizer. Nothing is contracted: the
// CUDA library is compiled with -fmad=false, and what is to be fused says fmaf. So a value does not
// depend on whether it was computed in the body of a vector loop or at its end, and what has no
// exponential in it has the CPU's bits.

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define TROUPE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TROUPE_HOST_DEVICE inline
#endif
// Before loops whose variable indexes what must stay in registers.
#if defined(__CUDA_ARCH__)
#define TROUPE_UNROLL _Pragma("unroll")
#else
#define TROUPE_UNROLL
#endif

namespace troupe::train::cuda {

// A bf16 number as memory holds it.
struct Bf16 {
  std::uint16_t bits;
};

TROUPE_HOST_DEVICE std::uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}
TROUPE_HOST_DEVICE float float_of(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

// --- element types

TROUPE_HOST_DEVICE float widen(float value) { return value; }
TROUPE_HOST_DEVICE float widen(Bf16 value) {
  return float_of(static_cast<std::uint32_t>(value.bits) << 16);
}

// To nearest, ties to even; a NaN stays one (on a GPU without its payload).
TROUPE_HOST_DEVICE Bf16 nearest_bf16(float value) {
#if defined(__CUDA_ARCH__)
  Bf16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
#else
  const std::uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return {static_cast<std::uint16_t>((bits | 0x400000u) >> 16)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
#endif
}

// Up with the probability that lies between the two neighbours, away from zero or towards it by 16
// random bits; what bf16 holds, infinities and NaNs stay. Expected value: the value itself.
TROUPE_HOST_DEVICE Bf16 random_bf16(float value, std::uint32_t random16) {
  const std::uint32_t bits = bits_of(value);
  if ((bits & 0x7f800000u) == 0x7f800000u) return nearest_bf16(value);
  return {static_cast<std::uint16_t>((bits + random16) >> 16)};
}

template <class T>
TROUPE_HOST_DEVICE T narrow(float value);
template <>
TROUPE_HOST_DEVICE float narrow<float>(float value) {
  return value;
}
template <>
TROUPE_HOST_DEVICE Bf16 narrow<Bf16>(float value) {
  return nearest_bf16(value);
}

// --- random bits

struct RandomWords {
  std::uint32_t word[4];
};

TROUPE_HOST_DEVICE std::uint32_t high_product(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>((static_cast<std::uint64_t>(a) * b) >> 32);
}

// Philox4x32-7 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): words that
// are a function of key and counter alone. Seven rounds pass BigCrush.
TROUPE_HOST_DEVICE RandomWords philox(std::uint64_t key, std::uint64_t counter) {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter);
  std::uint32_t c1 = static_cast<std::uint32_t>(counter >> 32);
  std::uint32_t c2 = 0, c3 = 0;
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  TROUPE_UNROLL
  for (int round = 0; round < 7; ++round) {
    const std::uint32_t high0 = high_product(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const std::uint32_t high1 = high_product(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// 16 bits for each of an element's three states.
struct RoundingBits {
  std::uint32_t parameter, first, second;
};
// Of a flat element in a step of this seed: two neighbours share the words of one counter.
TROUPE_HOST_DEVICE RoundingBits rounding_bits(const RandomWords& words, bool odd) {
  const std::uint32_t a = odd ? words.word[2] : words.word[0];
  const std::uint32_t b = odd ? words.word[3] : words.word[1];
  return {a & 0xffffu, a >> 16, b & 0xffffu};
}
TROUPE_HOST_DEVICE RoundingBits rounding_bits(std::uint64_t seed, std::int64_t element) {
  const auto at = static_cast<std::uint64_t>(element);
  return rounding_bits(philox(seed, at >> 1), (at & 1) != 0);
}

// --- activations

TROUPE_HOST_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

TROUPE_HOST_DEVICE float swiglu(float gate, float up) { return gate * sigmoid(gate) * up; }

struct SwigluGradient {
  float gate, up, act;
};
TROUPE_HOST_DEVICE SwigluGradient swiglu_gradient(float gate, float up, float dact) {
  const float s = sigmoid(gate);
  const float silu = gate * s;
  return {dact * up * (s * (1.0f + gate * (1.0f - s))), dact * silu, silu * up};
}

// HF's gelu_new: see train/cpu/gelu_kernels.cpp.
inline constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
inline constexpr float kGeluCubic = 0.044715f;

TROUPE_HOST_DEVICE float gelu_gate(float x) {
  return sigmoid(kTwoRootTwoOverPi * (x + kGeluCubic * x * x * x));
}
TROUPE_HOST_DEVICE float gelu(float x) { return x * gelu_gate(x); }

struct GeluGradient {
  float x, act;
};
TROUPE_HOST_DEVICE GeluGradient gelu_gradient(float x, float dact) {
  const float s = gelu_gate(x);
  const float slope = kTwoRootTwoOverPi * (1.0f + 3.0f * kGeluCubic * x * x);
  return {dact * (s + x * s * (1.0f - s) * slope), x * s};
}

// --- rotations

struct Rotated {
  float low, high;
};
// sine with its sign: minus it turns back.
TROUPE_HOST_DEVICE Rotated rotated(float low, float high, float cosine, float sine) {
  return {low * cosine - high * sine, high * cosine + low * sine};
}

// --- norms

TROUPE_HOST_DEVICE float reciprocal_root(float mean, float eps) { return 1.0f / sqrtf(mean + eps); }
TROUPE_HOST_DEVICE float rms_normed(float x, float rstd, float weight) {
  return (x * rstd) * weight;
}
// mean: of dy·w·x, times rstd².
TROUPE_HOST_DEVICE float rms_gradient(float dy, float x, float weight, float rstd, float mean) {
  return (dy * weight - x * mean) * rstd;
}
TROUPE_HOST_DEVICE float layer_normed(float x, float mean, float rstd, float weight, float bias) {
  return (x - mean) * rstd * weight + bias;
}
// mean_g, mean_gn: of g = dy·w and of g·(x − mean)·rstd.
TROUPE_HOST_DEVICE float layer_gradient(float dy, float x, float weight, float mean, float rstd,
                                        float mean_g, float mean_gn) {
  return (dy * weight - mean_g - (x - mean) * rstd * mean_gn) * rstd;
}

// --- attention: query row t of a batch row of T queries over K keys sees [first, end).

struct KeyRange {
  std::int64_t first, end;
};
TROUPE_HOST_DEVICE KeyRange keys_seen(const std::int32_t* first_key, std::int64_t batch_row,
                                      std::int64_t query, std::int64_t query_length,
                                      std::int64_t key_length) {
  const std::int64_t first = first_key ? first_key[batch_row * query_length + query] : 0;
  return {first < 0 ? 0 : first, key_length - query_length + query + 1};
}

// --- AdamW: see train/optimizer/adamw.h.

struct AdamWElement {
  float parameter, first, second;
};
struct AdamWConstants {
  float beta1_rest, beta2, beta2_rest, step_size, root_correction, epsilon, keep;
};
TROUPE_HOST_DEVICE AdamWElement adamw_updated(const AdamWConstants& k, const AdamWElement& e,
                                              float scaled_gradient) {
  const float gradient = scaled_gradient;
  const float first = e.first + (gradient - e.first) * k.beta1_rest;
  const float second = e.second * k.beta2 + gradient * gradient * k.beta2_rest;
  const float denominator = sqrtf(second) / k.root_correction + k.epsilon;
  return {e.parameter * k.keep - k.step_size * (first / denominator), first, second};
}

// --- the fixed tree of runtime/collective/reduce_tree.h

// Adds the value `kDistance` behind to each of the first ones, then with half of the distance.
template <int kDistance, int kMax>
TROUPE_HOST_DEVICE void fold_from(float (&values)[kMax], int count) {
  TROUPE_UNROLL
  for (int r = 0; r < kDistance; ++r)
    if (r + kDistance < count) values[r] += values[r + kDistance];
  if constexpr (kDistance > 1) fold_from<kDistance / 2>(values, count);
}
// Leaves the sum of values[0 … count) in values[0]. kMax: a power of two ≥ count.
template <int kMax>
TROUPE_HOST_DEVICE void fold_tree(float (&values)[kMax], int count) {
  if constexpr (kMax > 1) fold_from<kMax / 2>(values, count);
}

}  // namespace troupe::train::cuda

#pragma once
// How loops are written so that they vectorise and still give the same bits everywhere.
//
// A kernel is a free function marked TROUPE_VECTORIZED: the compiler makes one version for AVX-512,
// one for AVX2 and one for plain x86-64, and the loader picks. Reductions keep kLanes partial sums
// and add them by a fixed tree, and contraction is off (tools/cmake/troupe.cmake), so all versions
// round alike.

#include <cstdint>

// Function multi-versioning works through resolvers that run before a sanitizer's runtime is up.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(TROUPE_NO_TARGET_CLONES)
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TROUPE_VECTORIZED
#endif
#endif
#ifndef TROUPE_VECTORIZED
#define TROUPE_VECTORIZED __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#else
#define TROUPE_VECTORIZED
#endif

// For loops over 16-bit elements: AVX-512's word instructions come with x86-64-v4, which GCC alone
// dispatches on.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) &&                   \
    !defined(TROUPE_NO_TARGET_CLONES)
#define TROUPE_VECTORIZED_WORDS __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define TROUPE_VECTORIZED_WORDS TROUPE_VECTORIZED
#endif

// Before a loop whose iterations touch nothing of one another's, which the compiler cannot see.
#if defined(__clang__)
#define TROUPE_INDEPENDENT_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define TROUPE_INDEPENDENT_LOOP _Pragma("GCC ivdep")
#endif

#define TROUPE_INLINE inline __attribute__((always_inline))
// Behind the parameters of a lambda.
#define TROUPE_INLINE_LAMBDA __attribute__((always_inline))

namespace troupe::train {

// Partial sums of a reduction: one AVX-512 register of floats.
inline constexpr int kLanes = 16;
// Floats of a cache line: what one prefetch brings.
inline constexpr std::int64_t kLineElements = 16;

// Sum of kLanes partial sums, always in the same order.
template <typename T>
TROUPE_INLINE T sum_lanes(T* lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
}

}  // namespace troupe::train

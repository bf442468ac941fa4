#pragma once
// Elements that a thread loads and stores together: eight, by 16 bytes at a time, where addresses
// and sizes allow, else one.

#include <cstdint>
#include <cstring>

#include "train/cuda/kernels/arithmetic.h"

namespace troupe::train::cuda {

inline constexpr int kPack = 8;

struct alignas(16) PackWords {
  std::uint32_t word[4];
};

// Words that N elements of T take.
template <int N, class T>
inline constexpr int kPackWords = static_cast<int>(N * sizeof(T) / sizeof(PackWords));

// values[0 … N) of words as memory holds them.
template <class T, int N>
TROUPE_HOST_DEVICE void unpack(const PackWords (&words)[kPackWords<N, T>], float (&values)[N]) {
  TROUPE_UNROLL
  for (int i = 0; i < N; ++i) {
    if constexpr (sizeof(T) == 4) {
      values[i] = float_of(words[i / 4].word[i % 4]);
    } else {
      const std::uint32_t pair = words[i / 8].word[i % 8 / 2];
      values[i] = float_of(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
    }
  }
}

// The inverse; what T does not hold is rounded to nearest.
template <class T, int N>
TROUPE_HOST_DEVICE void pack(const float (&values)[N], PackWords (&words)[kPackWords<N, T>]) {
  TROUPE_UNROLL
  for (int i = 0; i < N; ++i) {
    if constexpr (sizeof(T) == 4) {
      words[i / 4].word[i % 4] = bits_of(values[i]);
    } else if (i % 2 == 0) {
      const std::uint32_t low = nearest_bf16(values[i]).bits;
      const std::uint32_t high = nearest_bf16(values[i + 1]).bits;
      words[i / 8].word[i % 8 / 2] = low | high << 16;
    }
  }
}

// values[0 … N) from memory, which is aligned to 16 bytes for N = kPack.
template <int N, class T>
TROUPE_HOST_DEVICE void load_pack(const T* from, float (&values)[N]) {
  if constexpr (N * sizeof(T) % sizeof(PackWords) == 0) {
    constexpr int kWords = kPackWords<N, T>;
    PackWords words[kWords];
#if defined(__CUDA_ARCH__)
    TROUPE_UNROLL
    for (int i = 0; i < kWords; ++i) words[i] = reinterpret_cast<const PackWords*>(from)[i];
#else
    std::memcpy(words, from, sizeof words);
#endif
    unpack<T>(words, values);
  } else {
    TROUPE_UNROLL
    for (int i = 0; i < N; ++i) values[i] = widen(from[i]);
  }
}

// The inverse.
template <int N, class T>
TROUPE_HOST_DEVICE void store_pack(const float (&values)[N], T* to) {
  if constexpr (N * sizeof(T) % sizeof(PackWords) == 0) {
    constexpr int kWords = kPackWords<N, T>;
    PackWords words[kWords];
    pack<T>(values, words);
#if defined(__CUDA_ARCH__)
    TROUPE_UNROLL
    for (int i = 0; i < kWords; ++i) reinterpret_cast<PackWords*>(to)[i] = words[i];
#else
    std::memcpy(to, words, sizeof words);
#endif
  } else {
    TROUPE_UNROLL
    for (int i = 0; i < N; ++i) to[i] = narrow<T>(values[i]);
  }
}

// What T makes of the values: they were stored, and are used as they can be read again.
template <class T, int N>
TROUPE_HOST_DEVICE void round_pack(float (&values)[N]) {
  TROUPE_UNROLL
  for (int i = 0; i < N; ++i) values[i] = widen(narrow<T>(values[i]));
}

// Row and column of a position in rows of `width`. 64-bit division takes a GPU a hundred
// instructions, 32-bit ones a fifth.
struct RowColumn {
  std::int64_t row, column;
};
TROUPE_HOST_DEVICE RowColumn row_column(std::int64_t at, std::int64_t width) {
  if (((at | width) >> 32) == 0) {
    const auto row = static_cast<std::uint32_t>(at) / static_cast<std::uint32_t>(width);
    return {row, at - static_cast<std::int64_t>(row) * width};
  }
  return {at / width, at % width};
}

// Whether packs of kPack elements may be used: rows begin at addresses of 16 bytes.
inline bool packs_fit(std::int64_t width) { return width % kPack == 0; }
template <class... Pointers>
bool packs_fit(std::int64_t width, const void* first, Pointers... others) {
  return reinterpret_cast<std::uintptr_t>(first) % sizeof(PackWords) == 0 &&
         packs_fit(width, others...);
}

}  // namespace troupe::train::cuda

#include "train/cpu/bf16_kernels.h"

#include "runtime/base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <utility>

// Functions are compiled for the processor that they are called on; nothing else of this file is.
#define TROUPE_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,prfchw")))
#define TROUPE_BF16_INLINE TROUPE_BF16 inline __attribute__((always_inline))

namespace troupe::train::bf16 {
namespace {

// Rows of 32-bit pairs that are transposed at once: one register of 16.
constexpr std::int64_t kSquare = 16;

__mmask16 mask_of(std::int64_t count) {
  return count >= 16 ? __mmask16(0xffff) : static_cast<__mmask16>((1u << count) - 1u);
}

// 16 elements as bf16 in the low halves of 32-bit words.
TROUPE_BF16_INLINE __m512i load_words(const float* x, __mmask16 mask) {
  return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, x)));
}
TROUPE_BF16_INLINE __m512i load_words(const std::uint16_t* x, __mmask16 mask) {
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x));
}

// 32 elements as 16 pairs; only the first `count` are there.
TROUPE_BF16_INLINE __m512i load_pairs(const float* x, std::int64_t count) {
  const __m512 low = _mm512_maskz_loadu_ps(mask_of(count), x);
  const __m512 high = _mm512_maskz_loadu_ps(mask_of(std::max<std::int64_t>(count - 16, 0)), x + 16);
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}
TROUPE_BF16_INLINE __m512i load_pairs(const std::uint16_t* x, std::int64_t count) {
  return _mm512_maskz_loadu_epi16(
      count >= 32 ? 0xffffffffu : static_cast<__mmask32>((1u << count) - 1u), x);
}

// Element j of row i becomes element i of row j.
TROUPE_BF16_INLINE void transpose(__m512i (&r)[kSquare]) {
  __m512i t[kSquare];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Where pair `pair` of rows [row, row + 16) goes: into one panel, or half by half into two.
TROUPE_BF16_INLINE void store_pair(std::uint16_t* out, std::int64_t panel, std::int64_t pairs,
                                   std::int64_t row, std::int64_t pair, __m512i value) {
  std::uint16_t* at = out + row / panel * panel * 2 * pairs + pair * panel * 2 + row % panel * 2;
  if (panel != kPanelOfA) {
    _mm512_storeu_si512(at, value);
    return;
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_castsi512_si256(value));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at + panel * 2 * pairs),
                      _mm512_extracti64x4_epi64(value, 1));
}

// Rows whose elements stand side by side: 16 rows of 32 elements are transposed at once.
template <typename T, std::int64_t kPanel>
TROUPE_BF16 void pack_deep(const T* x, std::int64_t stride, std::int64_t edge, std::int64_t depth,
                           std::uint16_t* out) {
  const std::int64_t pairs = pairs_of(depth);
  const std::int64_t rows = (edge + kSquare - 1) / kSquare * kSquare;
  for (std::int64_t row = 0; row < rows; row += kSquare)
    for (std::int64_t k = 0; k < depth; k += 2 * kSquare) {
      const std::int64_t count = std::min(2 * kSquare, depth - k);
      __m512i square[kSquare];
#pragma GCC unroll 16
      for (int i = 0; i < kSquare; ++i)
        square[i] =
            row + i < edge ? load_pairs(x + (row + i) * stride + k, count) : _mm512_setzero_si512();
      transpose(square);
      const std::int64_t pair = k / 2;
      if (count == 2 * kSquare) {
#pragma GCC unroll 16
        for (int i = 0; i < kSquare; ++i) store_pair(out, kPanel, pairs, row, pair + i, square[i]);
      } else {
        for (std::int64_t i = 0; i < pairs_of(count); ++i)
          store_pair(out, kPanel, pairs, row, pair + i, square[i]);
      }
    }
}

// Depths whose elements stand side by side: two of them are interleaved.
template <typename T, std::int64_t kPanel>
TROUPE_BF16 void pack_flat(const T* x, std::int64_t stride, std::int64_t edge, std::int64_t depth,
                           std::uint16_t* out) {
  const std::int64_t pairs = pairs_of(depth);
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const T* even = x + 2 * pair * stride;
    const T* odd = even + stride;
    const bool alone = 2 * pair + 1 == depth;
    for (std::int64_t row = 0; row < edge; row += kSquare) {
      const __mmask16 mask = mask_of(edge - row);
      const __m512i low = load_words(even + row, mask);
      const __m512i high = alone ? _mm512_setzero_si512() : load_words(odd + row, mask);
      store_pair(out, kPanel, pairs, row, pair, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

template <typename T, std::int64_t kPanel>
void pack_as(const Source& s, std::int64_t begin, std::int64_t edge, std::int64_t k0,
             std::int64_t depth, std::uint16_t* out) {
  const T* x = static_cast<const T*>(s.data);
  if (s.deep)
    pack_deep<T, kPanel>(x + begin * s.stride + k0, s.stride, edge, depth, out);
  else
    pack_flat<T, kPanel>(x + k0 * s.stride + begin, s.stride, edge, depth, out);
}

template <int kRows, int kVectors>
TROUPE_BF16 void multiply(const std::uint16_t* a, const std::uint16_t* b, std::int64_t pairs,
                          float* c, std::int64_t c_stride, bool accumulate, __mmask16 last) {
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      // The tile will be written: its lines come while the sums grow.
      __builtin_prefetch(c + i * c_stride + 16 * v, 1);
      sums[i][v] = _mm512_setzero_ps();
    }
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    __m512bh columns[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v)
      columns[v] = (__m512bh)_mm512_load_si512(b + pair * kPanelOfB * 2 + v * 32);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const auto row =
          (__m512bh)_mm512_set1_epi32(reinterpret_cast<const int*>(a + pair * kPanelOfA * 2)[i]);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm512_dpbf16_ps(sums[i][v], row, columns[v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      float* at = c + i * c_stride + 16 * v;
      const __mmask16 mask = v + 1 == kVectors ? last : __mmask16(0xffff);
      if (accumulate) sums[i][v] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, at), sums[i][v]);
      _mm512_mask_storeu_ps(at, mask, sums[i][v]);
    }
}

using Multiply = void (*)(const std::uint16_t*, const std::uint16_t*, std::int64_t, float*,
                          std::int64_t, bool, __mmask16);

template <int... kIndices>
constexpr auto all_tiles(std::integer_sequence<int, kIndices...>) {
  return std::array<Multiply, sizeof...(kIndices)>{multiply<kIndices / 3 + 1, kIndices % 3 + 1>...};
}
// By rows − 1 and vectors − 1.
constexpr auto kTiles = all_tiles(std::make_integer_sequence<int, kPanelOfA * 3>());

}  // namespace

void pack(const Source& source, std::int64_t begin, std::int64_t edge, std::int64_t k0,
          std::int64_t depth, std::int64_t panel, std::uint16_t* out) {
  const bool narrow = source.type == DType::kBF16;
  if (panel == kPanelOfA)
    (narrow ? pack_as<std::uint16_t, kPanelOfA> : pack_as<float, kPanelOfA>)(source, begin, edge,
                                                                             k0, depth, out);
  else
    (narrow ? pack_as<std::uint16_t, kPanelOfB> : pack_as<float, kPanelOfB>)(source, begin, edge,
                                                                             k0, depth, out);
}

void multiply_panels(const std::uint16_t* a, const std::uint16_t* b, std::int64_t pairs, float* c,
                     std::int64_t c_stride, std::int64_t rows, std::int64_t columns,
                     bool accumulate) {
  const std::int64_t vectors = (columns + 15) / 16;
  kTiles[static_cast<std::size_t>((rows - 1) * 3 + vectors - 1)](
      a, b, pairs, c, c_stride, accumulate, mask_of(columns - 16 * (vectors - 1)));
}

}  // namespace troupe::train::bf16

#else

namespace troupe::train::bf16 {

void pack(const Source&, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
          std::uint16_t*) {
  TROUPE_CHECK(false, "not on this processor");
}
void multiply_panels(const std::uint16_t*, const std::uint16_t*, std::int64_t, float*, std::int64_t,
                     std::int64_t, std::int64_t, bool) {
  TROUPE_CHECK(false, "not on this processor");
}

}  // namespace troupe::train::bf16
#endif

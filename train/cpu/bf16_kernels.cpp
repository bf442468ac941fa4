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
constexpr std::int64_t kLineBytes = 64;

__mmask16 mask_of(std::int64_t count) {
  return count >= 16 ? __mmask16(0xffff) : static_cast<__mmask16>((1u << count) - 1u);
}

__mmask32 mask32_of(std::int64_t count) {
  return count >= 32 ? __mmask32(0xffffffff) : static_cast<__mmask32>((1u << count) - 1u);
}

// Element i of `even` and of `odd`, 16 of each, as pair i.
TROUPE_BF16_INLINE __m512i interleave(__m512i even_then_odd) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, even_then_odd);
}
TROUPE_BF16_INLINE __m512i load_interleaved(const float* even, const float* odd, __mmask16 mask,
                                            __mmask16 odd_mask) {
  return interleave((__m512i)_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(odd_mask, odd),
                                                 _mm512_maskz_loadu_ps(mask, even)));
}
TROUPE_BF16_INLINE __m512i load_interleaved(const std::uint16_t* even, const std::uint16_t* odd,
                                            __mmask16 mask, __mmask16 odd_mask) {
  return interleave(_mm512_inserti64x4(_mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, even)),
                                       _mm256_maskz_loadu_epi16(odd_mask, odd), 1));
}

// 32 elements as 16 pairs; only the first `count` are there.
TROUPE_BF16_INLINE __m512i load_pairs(const float* x, std::int64_t count) {
  const __m512 low = _mm512_maskz_loadu_ps(mask_of(count), x);
  const __m512 high = _mm512_maskz_loadu_ps(mask_of(std::max<std::int64_t>(count - 16, 0)), x + 16);
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}
TROUPE_BF16_INLINE __m512i load_pairs(const std::uint16_t* x, std::int64_t count) {
  return _mm512_maskz_loadu_epi16(mask32_of(count), x);
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

// Columns of B whose elements stand side by side: 16 columns of 32 elements are transposed at once.
template <typename T>
TROUPE_BF16 void pack_deep(const T* x, std::int64_t stride, std::int64_t edge, std::int64_t depth,
                           std::uint16_t* out) {
  const std::int64_t pairs = pairs_of(depth);
  const std::int64_t rows = ceil_to(edge, kSquare);
  for (std::int64_t row = 0; row < rows; row += kSquare)
    for (std::int64_t k = 0; k < depth; k += 2 * kSquare) {
      const std::int64_t count = std::min(2 * kSquare, depth - k);
      // The same columns of the next rows.
      const T* next = x + (row + kSquare) * stride + k;
      for (int i = 0; i < kSquare; ++i, next += stride)
        for (std::int64_t line = 0; line < 2 * kSquare; line += kLineBytes / sizeof(T))
          __builtin_prefetch(next + line);
      __m512i square[kSquare];
#pragma GCC unroll 16
      for (int i = 0; i < kSquare; ++i)
        square[i] =
            row + i < edge ? load_pairs(x + (row + i) * stride + k, count) : _mm512_setzero_si512();
      transpose(square);
      const std::int64_t pair = k / 2;
      if (count == 2 * kSquare) {
#pragma GCC unroll 16
        for (int i = 0; i < kSquare; ++i)
          store_pair(out, kPanelOfB, pairs, row, pair + i, square[i]);
      } else {
        for (std::int64_t i = 0; i < pairs_of(count); ++i)
          store_pair(out, kPanelOfB, pairs, row, pair + i, square[i]);
      }
    }
}

// Depths that are fetched before they are packed: the processor's own prefetching follows neither
// two rows at once nor narrow pieces of rows (4 GB/s of 16 without it).
constexpr std::int64_t kDepthsAhead = 16;

// Depths whose elements stand side by side: two of them are interleaved.
template <typename T, std::int64_t kPanel>
TROUPE_BF16 void pack_flat(const T* x, std::int64_t stride, std::int64_t edge, std::int64_t depth,
                           std::uint16_t* out) {
  const std::int64_t pairs = pairs_of(depth);
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const T* even = x + 2 * pair * stride;
    const T* odd = even + stride;
    const bool alone = 2 * pair + 1 == depth;
    const std::int64_t ahead = kDepthsAhead * stride;
    for (std::int64_t row = 0; row < edge; row += kSquare) {
      __builtin_prefetch(even + ahead + row);
      __builtin_prefetch(odd + ahead + row);
      const __mmask16 mask = mask_of(edge - row);
      store_pair(out, kPanel, pairs, row, pair,
                 load_interleaved(even + row, odd + row, mask, alone ? __mmask16(0) : mask));
    }
  }
}

// Rows whose elements stand side by side, one after the other; a missing half of a pair is zero.
template <typename T>
TROUPE_BF16 void round_rows(const T* x, std::int64_t stride, std::int64_t rows, std::int64_t depth,
                            std::uint16_t* out) {
  const std::int64_t width = 2 * pairs_of(depth);
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* from = x + row * stride;
    std::uint16_t* to = out + row * width;
    std::int64_t k = 0;
    for (; k + 32 <= depth; k += 32) _mm512_storeu_si512(to + k, load_pairs(from + k, 32));
    if (k < width)
      _mm512_mask_storeu_epi16(to + k, mask32_of(width - k), load_pairs(from + k, depth - k));
  }
}

template <typename T>
void pack_columns_as(const Source& s, std::int64_t begin, std::int64_t edge, std::int64_t k0,
                     std::int64_t depth, std::uint16_t* out) {
  const T* x = static_cast<const T*>(s.data);
  if (s.deep)
    pack_deep<T>(x + begin * s.stride + k0, s.stride, edge, depth, out);
  else
    pack_flat<T, kPanelOfB>(x + k0 * s.stride + begin, s.stride, edge, depth, out);
}

template <typename T>
Rows rows_as(const Source& s, std::int64_t begin, std::int64_t edge, std::int64_t k0,
             std::int64_t depth, std::uint16_t* out) {
  const T* x = static_cast<const T*>(s.data);
  if (!s.deep) {
    pack_flat<T, kPanelOfA>(x + k0 * s.stride + begin, s.stride, edge, depth, out);
    return {out, 0};
  }
  x += begin * s.stride + k0;
  if constexpr (sizeof(T) == sizeof(std::uint16_t))
    if (depth % 2 == 0) return {x, s.stride};
  round_rows(x, s.stride, edge, depth, out);
  return {out, 2 * pairs_of(depth)};
}

// Where the rows of A and of C are.
enum Layout { kPanels, kSideBySide, kAcross };  // kAcross: side by side, and C is transposed

TROUPE_BF16_INLINE void store_eight(float* at, __m256 value, bool accumulate) {
  if (accumulate) value = _mm256_add_ps(_mm256_loadu_ps(at), value);
  _mm256_storeu_ps(at, value);
}

// 8 rows of 16 elements become 16 rows of 8 in memory, of which `count` are wanted. By the
// compiler's own shuffles: GCC 12 finds fault with those of its header.
TROUPE_BF16_INLINE void store_across(const __m512 (&r)[8], float* c, std::int64_t stride,
                                     std::int64_t count, bool accumulate) {
  __m512 twos[8], fours[8];
  // Of each 128 bits the columns 0 and 1, then 2 and 3.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    twos[2 * i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24,
                                          9, 25, 12, 28, 13, 29);
    twos[2 * i + 1] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 18, 3, 19, 6, 22, 7, 23,
                                              10, 26, 11, 27, 14, 30, 15, 31);
  }
  // Of each 128 bits one column: of rows 0 … 3, then of rows 4 … 7.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int from = i / 2 * 4 + i % 2, to = i / 2 * 4 + i % 2 * 2;
    fours[to] = __builtin_shufflevector(twos[from], twos[from + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8,
                                        9, 24, 25, 12, 13, 28, 29);
    fours[to + 1] = __builtin_shufflevector(twos[from], twos[from + 2], 2, 3, 18, 19, 6, 7, 22, 23,
                                            10, 11, 26, 27, 14, 15, 30, 31);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    float* at = c + j * stride;
    if (j < count)
      store_eight(at, __builtin_shufflevector(fours[j], fours[4 + j], 0, 1, 2, 3, 16, 17, 18, 19),
                  accumulate);
    if (4 + j < count)
      store_eight(at + 4 * stride,
                  __builtin_shufflevector(fours[j], fours[4 + j], 4, 5, 6, 7, 20, 21, 22, 23),
                  accumulate);
    if (8 + j < count)
      store_eight(at + 8 * stride,
                  __builtin_shufflevector(fours[j], fours[4 + j], 8, 9, 10, 11, 24, 25, 26, 27),
                  accumulate);
    if (12 + j < count)
      store_eight(at + 12 * stride,
                  __builtin_shufflevector(fours[j], fours[4 + j], 12, 13, 14, 15, 28, 29, 30, 31),
                  accumulate);
  }
}

template <int kRows, int kVectors, Layout kLayout>
TROUPE_BF16 void multiply_tile(const std::uint16_t* a, std::int64_t a_stride,
                               const std::uint16_t* b, std::int64_t pairs, float* c,
                               std::int64_t c_stride, std::int64_t columns, bool accumulate,
                               LinesAhead& ahead, std::int64_t lines) {
  constexpr std::int64_t kPair = kLayout == kPanels ? 2 * kPanelOfA : 2;
  const std::int64_t row_stride = kLayout == kPanels ? 2 : a_stride;
  // The tile will be written: its lines come while the sums grow.
  if constexpr (kLayout == kAcross) {
    // The tile before has brought lines whose first half it wrote.
    float* at = c;
    if (reinterpret_cast<std::uintptr_t>(c) % 64 == 0)
      for (std::int64_t column = 0; column < columns; ++column, at += c_stride)
        __builtin_prefetch(at, 1);
  } else {
    float* at = c;
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i, at += c_stride)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) __builtin_prefetch(at + 16 * v, 1);
  }
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) sums[i][v] = _mm512_setzero_ps();
  const std::uint16_t* a4 = a + 4 * row_stride;
  const std::int64_t row_stride3 = 3 * row_stride;
  for (std::int64_t done = 0; done < pairs; done += kPairsPerFetch) {
    for (std::int64_t line = 0; line < lines; ++line) ahead.fetch();
    for (std::int64_t left = std::min(kPairsPerFetch, pairs - done); left > 0; --left) {
      __m512bh columns_of_b[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) columns_of_b[v] = (__m512bh)_mm512_load_si512(b + v * 32);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const std::uint16_t* at =
            (i < 4 ? a : a4) + (i % 4 == 3 ? row_stride3 : i % 4 * row_stride);
        int bits;
        __builtin_memcpy(&bits, at, sizeof bits);
        const auto row = (__m512bh)_mm512_set1_epi32(bits);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v)
          sums[i][v] = _mm512_dpbf16_ps(sums[i][v], row, columns_of_b[v]);
      }
      a += kPair, a4 += kPair;
      b += kPanelOfB * 2;
    }
  }
  if constexpr (kLayout == kAcross && kRows == 8) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      const __m512 rows[8] = {sums[0][v], sums[1][v], sums[2][v], sums[3][v],
                              sums[4][v], sums[5][v], sums[6][v], sums[7][v]};
      store_across(rows, c + 16 * v * c_stride, c_stride, v + 1 < kVectors ? 16 : columns - 16 * v,
                   accumulate);
    }
  } else if constexpr (kLayout == kAcross) {
    alignas(64) float tile[kRows][16 * kVectors];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) _mm512_store_ps(tile[i] + 16 * v, sums[i][v]);
    for (std::int64_t column = 0; column < columns; ++column)
      for (int i = 0; i < kRows; ++i) {
        float& at = c[column * c_stride + i];
        at = accumulate ? at + tile[i][column] : tile[i][column];
      }
  } else {
    const __mmask16 last = mask_of(columns - 16 * (kVectors - 1));
    // Not the addresses of above, kept in registers that the loop needs.
    asm("" : "+r"(c));
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i, c += c_stride)
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        float* at = c + 16 * v;
        const __mmask16 mask = v + 1 == kVectors ? last : __mmask16(0xffff);
        if (accumulate) sums[i][v] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, at), sums[i][v]);
        _mm512_mask_storeu_ps(at, mask, sums[i][v]);
      }
  }
}

using Multiply = void (*)(const std::uint16_t*, std::int64_t, const std::uint16_t*, std::int64_t,
                          float*, std::int64_t, std::int64_t, bool, LinesAhead&, std::int64_t);

template <Layout kLayout, int... kIndices>
constexpr auto all_tiles(std::integer_sequence<int, kIndices...>) {
  return std::array<Multiply, sizeof...(kIndices)>{
      multiply_tile<kIndices / 3 + 1, kIndices % 3 + 1, kLayout>...};
}
// By layout, then by rows − 1 and vectors − 1.
constexpr std::array kTiles = {
    all_tiles<kPanels>(std::make_integer_sequence<int, kPanelOfA * 3>()),
    all_tiles<kSideBySide>(std::make_integer_sequence<int, kPanelOfA * 3>()),
    all_tiles<kAcross>(std::make_integer_sequence<int, kPanelOfA * 3>())};

}  // namespace

LinesAhead lines_of(const Source& source, std::int64_t begin, std::int64_t edge, std::int64_t k0,
                    std::int64_t depth) {
  const auto bytes = static_cast<std::int64_t>(dtype_size(source.type));
  const std::int64_t row = source.deep ? begin : k0, column = source.deep ? k0 : begin;
  return {static_cast<const char*>(source.data) + (row * source.stride + column) * bytes,
          source.deep ? edge : depth, source.deep ? depth : edge, source.stride, bytes};
}

void pack_columns(const Source& source, std::int64_t begin, std::int64_t edge, std::int64_t k0,
                  std::int64_t depth, std::uint16_t* out) {
  const bool narrow = source.type == DType::kBF16;
  (narrow ? pack_columns_as<std::uint16_t> : pack_columns_as<float>)(source, begin, edge, k0, depth,
                                                                     out);
}

Rows rows_of(const Source& source, std::int64_t begin, std::int64_t edge, std::int64_t k0,
             std::int64_t depth, std::uint16_t* out) {
  const bool narrow = source.type == DType::kBF16;
  return (narrow ? rows_as<std::uint16_t> : rows_as<float>)(source, begin, edge, k0, depth, out);
}

void multiply(const Rows& a, const std::uint16_t* b, std::int64_t pairs, const Target& t,
              LinesAhead& ahead, std::int64_t lines) {
  TROUPE_CHECK(!t.transposed || a.stride > 0, "packed rows of a transposed product");
  const Layout layout = t.transposed ? kAcross : a.stride > 0 ? kSideBySide : kPanels;
  const std::int64_t tile = (t.rows - 1) * 3 + (t.columns + 15) / 16 - 1;
  kTiles[layout][static_cast<std::size_t>(tile)](a.data, a.stride, b, pairs, t.c, t.stride,
                                                 t.columns, t.accumulate, ahead, lines);
}

}  // namespace troupe::train::bf16

#else

namespace troupe::train::bf16 {

LinesAhead lines_of(const Source&, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
  return {};
}

void pack_columns(const Source&, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                  std::uint16_t*) {
  TROUPE_CHECK(false, "not on this processor");
}
Rows rows_of(const Source&, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
             std::uint16_t*) {
  TROUPE_CHECK(false, "not on this processor");
  return {};
}
void multiply(const Rows&, const std::uint16_t*, std::int64_t, const Target&, LinesAhead&,
              std::int64_t) {
  TROUPE_CHECK(false, "not on this processor");
}

}  // namespace troupe::train::bf16
#endif

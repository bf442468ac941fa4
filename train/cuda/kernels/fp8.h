#pragma once
// Operands of 8 bits, as OCP's "8-bit floating point specification" (2023) has them, and how a
// matrix becomes one: its greatest magnitude is found, the matrix is multiplied so that this one
// becomes the format's greatest number, and rounded. The scale stays on the device.
//
// Three launches: amax_block over kAmaxParts blocks, scale_block over one, then quantize_pack or
// quantize_transposed_block. The greatest magnitude has no order, so bits depend on nothing else.

#include <cstdint>

#include "train/cuda/kernels/arithmetic.h"
#include "train/cuda/kernels/block.h"
#include "train/cuda/kernels/packs.h"

namespace troupe::train::cuda {

// --- the formats. Codes are sign, exponent, fraction; a number's code without its sign grows with
// it.

// 4 bits of exponent, 3 of fraction: ±448, no infinities; 0x7f and 0xff are no numbers.
struct E4M3 {
  static constexpr int kFractionBits = 3;
  static constexpr float kGreatest = 448.0f;
  static constexpr float kLeastNormal = 0x1p-6f;
};
// 5 bits of exponent, 2 of fraction: ±57344; 0x7c is infinite, what is above no number.
struct E5M2 {
  static constexpr int kFractionBits = 2;
  static constexpr float kGreatest = 57344.0f;
  static constexpr float kLeastNormal = 0x1p-14f;
};

inline constexpr std::uint32_t kFp8NotANumber = 0x7f;

// To nearest, ties to even; what is too large becomes the greatest number, infinities too; what is
// no number becomes 0x7f: as cvt.rn.satfinite of GPUs that have it. Subnormal numbers are numbers
// like others.
template <class Format>
TROUPE_HOST_DEVICE std::uint32_t fp8_from_float(float value) {
  constexpr int kShift = 23 - Format::kFractionBits;
  constexpr std::uint32_t kExponent = 0x7f800000u;
  const std::uint32_t bits = bits_of(value);
  const float magnitude = fminf(fabsf(value), Format::kGreatest);
  // A float whose last bit is worth what the code's is at this magnitude: adding it rounds.
  const std::uint32_t own = bits_of(magnitude) & kExponent;
  const std::uint32_t least = bits_of(Format::kLeastNormal);
  const std::uint32_t exponent = own > least ? own : least;
  const std::uint32_t rounder = exponent + (static_cast<std::uint32_t>(kShift) << 23);
  const std::uint32_t rounded = bits_of(magnitude + float_of(rounder)) - rounder;
  const std::uint32_t code = ((exponent - least) >> kShift) + rounded;
  if ((bits & 0x7fffffffu) > kExponent) return kFp8NotANumber;
  return code | ((bits >> 24) & 0x80u);
}

// Exact.
template <class Format>
TROUPE_HOST_DEVICE float float_from_fp8(std::uint32_t code) {
  constexpr int kFraction = Format::kFractionBits;
  const std::uint32_t magnitude = code & 0x7fu;
  const std::uint32_t sign = (code & 0x80u) << 24;
  if constexpr (kFraction == 3) {
    if (magnitude == kFp8NotANumber) return float_of(0x7fc00000u | sign);
  } else {
    if (magnitude >= 0x7cu)
      return float_of((magnitude == 0x7cu ? 0x7f800000u : 0x7fc00000u) | sign);
  }
  const std::uint32_t exponent = magnitude >> kFraction;
  const std::uint32_t fraction = magnitude & ((1u << kFraction) - 1);
  // The least number's multiple, below the normal ones; else the same bits further up.
  constexpr float kLeast = Format::kLeastNormal / static_cast<float>(1 << kFraction);
  if (exponent == 0) {
    const float value = static_cast<float>(fraction) * kLeast;
    return sign != 0 ? -value : value;
  }
  const std::uint32_t least = bits_of(Format::kLeastNormal) - (1u << 23);
  return float_of(((exponent << 23) + least + (fraction << (23 - kFraction))) | sign);
}

// --- scales

// What values are multiplied with to become codes, and codes' products to become values.
struct Fp8Scale {
  float scale, inverse;
};

// Of a matrix whose greatest magnitude has these bits. An infinity gives a scale of 0, which makes
// it no number, and what is no number a scale that is none: a product shows either. Matrices of
// less than 2⁻¹⁰⁰ are taken for as large.
template <class Format>
TROUPE_HOST_DEVICE Fp8Scale fp8_scale(std::uint32_t greatest_bits) {
  const std::uint32_t least = bits_of(0x1p-100f);
  const float greatest = float_of(greatest_bits > least ? greatest_bits : least);
  const float scale = Format::kGreatest / greatest;
  return {scale, 1.0f / scale};
}

// A row-major matrix (rows, columns) of float or Bf16 whose rows lie `stride` apart.
template <class T>
struct Fp8Source {
  const T* x;
  std::int64_t rows, columns, stride;
};

inline constexpr int kAmaxThreads = 256;
inline constexpr int kAmaxParts = 512;

struct AmaxShared {
  std::uint32_t greatest[kAmaxThreads];
};

// Leaves the greatest of what the threads hold in shared.greatest[0].
template <int kThreads>
TROUPE_HOST_DEVICE void greatest_of_block(const Block<kThreads>& block, AmaxShared& shared) {
  static_assert(kThreads == kAmaxThreads);
  for (int distance = kThreads / 2; distance > 0; distance /= 2) {
    block.phase([&](int t) {
      if (t >= distance) return;
      const std::uint32_t other = shared.greatest[t + distance];
      if (other > shared.greatest[t]) shared.greatest[t] = other;
    });
  }
}

// parts[block] = bits of the greatest magnitude that the block of `blocks` sees. N: kPack where
// every row begins at 16 bytes and is whole packs, else 1.
template <class T, int N>
TROUPE_HOST_DEVICE void amax_block(const Block<kAmaxThreads>& block, AmaxShared& shared,
                                   const Fp8Source<T>& a, std::int64_t blocks,
                                   std::uint32_t* parts) {
  const std::int64_t packs_per_row = a.columns / N;
  const std::int64_t packs = a.rows * packs_per_row;
  block.phase([&](int t) {
    std::uint32_t greatest = 0;
    for (std::int64_t i = block.x * kAmaxThreads + t; i < packs; i += blocks * kAmaxThreads) {
      const RowColumn at = row_column(i, packs_per_row);
      float x[N];
      load_pack<N>(a.x + at.row * a.stride + at.column * N, x);
      TROUPE_UNROLL
      for (int k = 0; k < N; ++k) {
        const std::uint32_t magnitude = bits_of(x[k]) & 0x7fffffffu;
        if (magnitude > greatest) greatest = magnitude;
      }
    }
    shared.greatest[t] = greatest;
  });
  greatest_of_block(block, shared);
  block.phase([&](int t) {
    if (t == 0) parts[block.x] = shared.greatest[0];
  });
}

template <class Format>
TROUPE_HOST_DEVICE void scale_block(const Block<kAmaxThreads>& block, AmaxShared& shared,
                                    const std::uint32_t* parts, std::int64_t count,
                                    Fp8Scale* scale) {
  block.phase([&](int t) {
    std::uint32_t greatest = 0;
    for (std::int64_t i = t; i < count; i += kAmaxThreads)
      if (parts[i] > greatest) greatest = parts[i];
    shared.greatest[t] = greatest;
  });
  greatest_of_block(block, shared);
  block.phase([&](int t) {
    if (t == 0) *scale = fp8_scale<Format>(shared.greatest[0]);
  });
}

// --- rounding. out: rows of `out_stride` codes, a multiple of 16, at 16 bytes; columns behind the
// source's are zeros.

template <class Format, class T>
struct Quantize {
  Fp8Source<T> source;
  const Fp8Scale* scale;
  std::uint8_t* out;
  std::int64_t out_stride;
};

// Codes of neighbours, four to a word, the first one in its low bits.
template <class Format, int N>
TROUPE_HOST_DEVICE void quantize_values(const float (&x)[N], float scale,
                                        std::uint32_t (&words)[N / 4]) {
  TROUPE_UNROLL
  for (int i = 0; i < N / 4; ++i) {
    std::uint32_t word = 0;
    TROUPE_UNROLL
    for (int k = 0; k < 4; ++k) word |= fp8_from_float<Format>(x[4 * i + k] * scale) << (8 * k);
    words[i] = word;
  }
}

// Eight elements of a row from `column` on; what lies behind the row's end is 0. kWhole: rows begin
// at 16 bytes.
template <bool kWhole, class T>
TROUPE_HOST_DEVICE void load_eight(const Fp8Source<T>& a, std::int64_t row, std::int64_t column,
                                   float (&x)[kPack]) {
  const T* from = a.x + row * a.stride + column;
  if (kWhole && column + kPack <= a.columns) {
    load_pack<kPack>(from, x);
    return;
  }
  TROUPE_UNROLL
  for (int k = 0; k < kPack; ++k) x[k] = column + k < a.columns ? widen(from[k]) : 0.0f;
}

// Eight codes: of rows · out_stride / 8.
template <class Format, class T, bool kWhole>
struct QuantizePack {
  Quantize<Format, T> a;

  TROUPE_HOST_DEVICE void operator()(std::int64_t i) const {
    const RowColumn at = row_column(i, a.out_stride / kPack);
    float x[kPack];
    load_eight<kWhole>(a.source, at.row, at.column * kPack, x);
    std::uint32_t words[2];
    quantize_values<Format>(x, a.scale->scale, words);
    auto* to = reinterpret_cast<std::uint32_t*>(a.out + i * kPack);
    to[0] = words[0], to[1] = words[1];
  }
};

// A square tile of the source, whose columns become rows.
inline constexpr int kTransposeTile = 64;
inline constexpr int kTransposeThreads = 256;

struct TransposeShared {
  // Rows of the source, four bytes further apart than they are long, for the banks' sake.
  std::uint32_t word[kTransposeTile][kTransposeTile / 4 + 1];
};

// The block's tile: x counts tiles of the source's rows up to out_stride, y of its columns. The
// output has source.columns rows.
template <class Format, class T, bool kWhole>
TROUPE_HOST_DEVICE void quantize_transposed_block(const Block<kTransposeThreads>& block,
                                                  TransposeShared& shared,
                                                  const Quantize<Format, T>& a) {
  constexpr int kPacks = kTransposeTile / kPack;  // of a row
  constexpr int kRuns = kTransposeTile / 16;      // of an output's row
  const std::int64_t first_row = block.x * kTransposeTile;
  const std::int64_t first_column = block.y * kTransposeTile;
  block.phase([&](int t) {
    const float scale = a.scale->scale;
    for (int i = t; i < kTransposeTile * kPacks; i += kTransposeThreads) {
      const int row = i / kPacks, pack = i % kPacks;
      std::uint32_t words[2] = {};
      if (first_row + row < a.source.rows) {
        float x[kPack];
        load_eight<kWhole>(a.source, first_row + row, first_column + pack * kPack, x);
        quantize_values<Format>(x, scale, words);
      }
      shared.word[row][2 * pack] = words[0], shared.word[row][2 * pack + 1] = words[1];
    }
  });
  block.phase([&](int t) {
    static_assert(kTransposeTile * kRuns == kTransposeThreads);
    const int column = t / kRuns, run = t % kRuns;
    if (first_column + column >= a.source.columns || first_row + run * 16 >= a.out_stride) return;
    PackWords out;
    TROUPE_UNROLL
    for (int i = 0; i < 4; ++i) {
      std::uint32_t word = 0;
      TROUPE_UNROLL
      for (int k = 0; k < 4; ++k) {
        const std::uint32_t from = shared.word[run * 16 + 4 * i + k][column / 4];
        word |= ((from >> (8 * (column % 4))) & 0xffu) << (8 * k);
      }
      out.word[i] = word;
    }
    *reinterpret_cast<PackWords*>(a.out + (first_column + column) * a.out_stride + first_row +
                                  run * 16) = out;
  });
}

}  // namespace troupe::train::cuda

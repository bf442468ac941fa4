// Operands of 8 bits: every code, every halfway case, scales, and matrices turned round.

#include "train/cuda/kernels/fp8.h"

#include <limits>

#include "tests/train/cuda/kernels/host_blocks.h"

namespace troupe::train::tests {
namespace {

using cuda::E4M3;
using cuda::E5M2;

constexpr float kInfinite = std::numeric_limits<float>::infinity();

template <class Format>
constexpr std::uint32_t kGreatestCode = Format::kFractionBits == 3 ? 0x7e : 0x7b;

// By the definition: (−1)^sign · 2^(exponent − bias) · fraction.
template <class Format>
float value_by_definition(std::uint32_t code) {
  constexpr int kFraction = Format::kFractionBits;
  constexpr int kBias = kFraction == 3 ? 7 : 15;
  const int exponent = static_cast<int>((code & 0x7f) >> kFraction);
  const double fraction = (code & ((1u << kFraction) - 1)) / std::pow(2.0, kFraction);
  const double magnitude = exponent == 0 ? std::pow(2.0, 1 - kBias) * fraction
                                         : std::pow(2.0, exponent - kBias) * (1 + fraction);
  return static_cast<float>(code & 0x80 ? -magnitude : magnitude);
}

template <class Format>
void check_codes() {
  for (std::uint32_t code = 0; code < 256; ++code) {
    CAPTURE(code);
    const float value = cuda::float_from_fp8<Format>(code);
    const std::uint32_t magnitude = code & 0x7f;
    if (magnitude <= kGreatestCode<Format>) {
      CHECK(value == value_by_definition<Format>(code));
      CHECK(std::signbit(value) == (code >= 0x80));
      CHECK(cuda::fp8_from_float<Format>(value) == code);
    } else if (Format::kFractionBits == 2 && magnitude == 0x7c) {
      CHECK(value == (code >= 0x80 ? -kInfinite : kInfinite));
    } else {
      CHECK(std::isnan(value));
    }
  }
  CHECK(cuda::float_from_fp8<Format>(kGreatestCode<Format>) == Format::kGreatest);
}

template <class Format>
void check_halfway() {
  for (std::uint32_t code = 0; code < kGreatestCode<Format>; ++code) {
    CAPTURE(code);
    const float low = cuda::float_from_fp8<Format>(code);
    const float high = cuda::float_from_fp8<Format>(code + 1);
    const float half = 0.5f * (low + high);  // exact
    const std::uint32_t even = code % 2 == 0 ? code : code + 1;
    for (const std::uint32_t sign : {0u, 0x80u}) {
      const float s = sign ? -1.0f : 1.0f;
      CHECK(cuda::fp8_from_float<Format>(s * half) == (even | sign));
      CHECK(cuda::fp8_from_float<Format>(s * std::nextafter(half, 0.0f)) == (code | sign));
      CHECK(cuda::fp8_from_float<Format>(s * std::nextafter(half, kInfinite)) ==
            ((code + 1) | sign));
    }
  }
  // Saturation, and what is no number.
  for (const float large : {Format::kGreatest * 1.01f, Format::kGreatest * 4, 3e38f, kInfinite}) {
    CHECK(cuda::fp8_from_float<Format>(large) == kGreatestCode<Format>);
    CHECK(cuda::fp8_from_float<Format>(-large) == (kGreatestCode<Format> | 0x80));
  }
  CHECK(cuda::fp8_from_float<Format>(std::numeric_limits<float>::quiet_NaN()) == 0x7f);
  CHECK(cuda::fp8_from_float<Format>(-std::numeric_limits<float>::quiet_NaN()) == 0x7f);
  CHECK(cuda::fp8_from_float<Format>(1e-40f) == 0);
  CHECK(cuda::fp8_from_float<Format>(-1e-40f) == 0x80);
}

TEST_CASE("every code of 8 bits has the value of its definition, and comes back") {
  check_codes<E4M3>();
  check_codes<E5M2>();
}

TEST_CASE("rounding to 8 bits is to nearest, ties to even, and saturates") {
  check_halfway<E4M3>();
  check_halfway<E5M2>();
}

TEST_CASE("the greatest magnitude becomes the format's greatest number") {
  for (const float greatest : {1e-30f, 3e-5f, 0.37f, 448.0f, 1e5f, 3e38f}) {
    CAPTURE(greatest);
    const cuda::Fp8Scale s = cuda::fp8_scale<E4M3>(cuda::bits_of(greatest));
    CHECK(cuda::fp8_from_float<E4M3>(greatest * s.scale) == 0x7e);
    CHECK(448.0f * s.inverse == doctest::Approx(greatest).epsilon(1e-6));
    CHECK(cuda::fp8_from_float<E5M2>(-greatest *
                                     cuda::fp8_scale<E5M2>(cuda::bits_of(greatest)).scale) == 0xfb);
  }
  // Of zeros, zeros; nothing overflows.
  for (const float tiny : {0.0f, 1e-45f}) {
    const cuda::Fp8Scale s = cuda::fp8_scale<E4M3>(cuda::bits_of(tiny));
    CHECK(std::isfinite(s.scale));
    CHECK(std::isfinite(s.inverse));
    CHECK(s.inverse > 0);
    CHECK(cuda::fp8_from_float<E4M3>(tiny * s.scale) == 0);
  }
  // What is not finite shows in every product.
  const cuda::Fp8Scale infinite = cuda::fp8_scale<E4M3>(cuda::bits_of(kInfinite));
  CHECK(cuda::fp8_from_float<E4M3>(kInfinite * infinite.scale) == 0x7f);
  CHECK(std::isnan(cuda::float_from_fp8<E4M3>(cuda::fp8_from_float<E4M3>(infinite.scale)) *
                   infinite.inverse));
  const cuda::Fp8Scale none = cuda::fp8_scale<E4M3>(0x7fc00000u);
  CHECK(std::isnan(none.scale));
  CHECK(std::isnan(none.inverse));
}

// A matrix in memory, within a larger one, and its codes by the kernels' bodies.
template <class Format, class T>
struct Quantized {
  std::int64_t rows, columns, stride;
  std::vector<T> x;
  cuda::Fp8Scale scale{};
  std::vector<cuda::PackWords> out;

  Quantized(std::int64_t of_rows, std::int64_t of_columns, std::int64_t gap)
      : rows(of_rows),
        columns(of_columns),
        stride(of_columns + gap),
        x(stored<T>(random_values(rows * stride, 7, 3.0f))) {
    // Between the rows lies what must not count.
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = columns; i < stride; ++i)
        x[static_cast<std::size_t>(row * stride + i)] = cuda::narrow<T>(1e6f);
  }
  float at(std::int64_t row, std::int64_t column) const {
    return cuda::widen(x[static_cast<std::size_t>(row * stride + column)]);
  }
  float greatest() const {
    float most = 0;
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < columns; ++i) most = std::max(most, std::abs(at(row, i)));
    return most;
  }
  template <int N>
  void find_scale(std::int64_t blocks) {
    const cuda::Fp8Source<T> source{x.data(), rows, columns, stride};
    std::vector<std::uint32_t> parts(static_cast<std::size_t>(blocks), 0xffffffffu);
    cuda::AmaxShared shared{};
    using AmaxBlock = cuda::Block<cuda::kAmaxThreads>;
    run_grid<AmaxBlock>(blocks, 1, 1, [&](const AmaxBlock& block) {
      cuda::amax_block<T, N>(block, shared, source, blocks, parts.data());
    });
    cuda::scale_block<Format>(AmaxBlock{}, shared, parts.data(), blocks, &scale);
  }
  template <bool kWhole>
  void round(bool transpose) {
    const std::int64_t out_rows = transpose ? columns : rows;
    const std::int64_t out_stride = ((transpose ? rows : columns) + 15) / 16 * 16;
    out.assign(static_cast<std::size_t>(out_rows * out_stride / 16), {{~0u, ~0u, ~0u, ~0u}});
    const cuda::Quantize<Format, T> a{
        {x.data(), rows, columns, stride}, &scale, codes(), out_stride};
    if (transpose) {
      cuda::TransposeShared shared{};
      using TileBlock = cuda::Block<cuda::kTransposeThreads>;
      run_grid<TileBlock>((out_stride + 63) / 64, (columns + 63) / 64, 1,
                          [&](const TileBlock& block) {
                            cuda::quantize_transposed_block<Format, T, kWhole>(block, shared, a);
                          });
    } else {
      run_each(cuda::QuantizePack<Format, T, kWhole>{a}, rows * (out_stride / kPack));
    }
    int wrong = 0;
    for (std::int64_t row = 0; row < out_rows; ++row) {
      for (std::int64_t i = 0; i < out_stride; ++i) {
        const bool inside = i < (transpose ? rows : columns);
        const std::uint32_t expected =
            inside
                ? cuda::fp8_from_float<Format>((transpose ? at(i, row) : at(row, i)) * scale.scale)
                : 0;
        wrong += codes()[row * out_stride + i] != expected;
      }
    }
    CHECK(wrong == 0);
  }
  std::uint8_t* codes() { return reinterpret_cast<std::uint8_t*>(out.data()); }
};

template <class Format, class T>
void check_matrices() {
  struct Size {
    std::int64_t rows, columns, gap;
  };
  for (const Size& s : {Size{1, 1, 0},
                        {3, 5, 2},
                        {64, 64, 0},
                        {65, 72, 8},
                        {130, 200, 0},
                        {17, 130, 6},
                        {200, 16, 16}}) {
    CAPTURE(s.rows);
    CAPTURE(s.columns);
    Quantized<Format, T> q(s.rows, s.columns, s.gap);
    const cuda::Fp8Scale expected = cuda::fp8_scale<Format>(cuda::bits_of(q.greatest()));
    for (const std::int64_t blocks : {1, 3}) {
      q.template find_scale<1>(blocks);
      CHECK(q.scale.scale == expected.scale);
      CHECK(q.scale.inverse == expected.inverse);
    }
    const bool whole = s.columns % kPack == 0 && q.stride % kPack == 0;
    if (whole) {
      q.scale = {};
      q.template find_scale<kPack>(2);
      CHECK(q.scale.scale == expected.scale);
    }
    for (const bool transpose : {false, true}) {
      q.template round<false>(transpose);
      if (q.stride % kPack == 0) q.template round<true>(transpose);
    }
  }
}

TEST_CASE("matrices become codes in rows of what is summed over, filled up with zeros") {
  check_matrices<E4M3, Bf16>();
  check_matrices<E5M2, Bf16>();
  check_matrices<E4M3, float>();
}

}  // namespace
}  // namespace troupe::train::tests

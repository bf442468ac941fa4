// Operands of 8 bits: every code, every halfway case, scales. Matrices: launchers_test.

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

}  // namespace
}  // namespace troupe::train::tests

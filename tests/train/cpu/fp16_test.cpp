// fp16 products: fp32 sums of operands that are rounded to fp16.

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/train/cpu/operator_fixture.h"
#include "train/tensor/convert.h"

namespace troupe::train::tests {
namespace {

struct HalfProduct {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = true, accumulate = false;
};

Vector multiply(const HalfProduct& p, int threads, const void* a, DType a_type, const void* b,
                DType b_type, Arithmetic arithmetic) {
  Arena arena(threads);
  Vector c = random_vector(p.m * p.n, 3);
  make_cpu_operators(arena)->gemm({.m = p.m,
                                   .n = p.n,
                                   .k = p.k,
                                   .a = a,
                                   .a_type = a_type,
                                   .a_stride = p.transpose_a ? p.m : p.k,
                                   .transpose_a = p.transpose_a,
                                   .b = b,
                                   .b_type = b_type,
                                   .b_stride = p.transpose_b ? p.k : p.n,
                                   .transpose_b = p.transpose_b,
                                   .c = c.data(),
                                   .c_stride = p.n,
                                   .accumulate = p.accumulate,
                                   .arithmetic = arithmetic});
  return c;
}

double distance(const Vector& a, const Vector& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max<double>(most, std::abs(a[i] - b[i]));
  return most;
}

Vector rounded(Vector values) {
  round_to_f16(values.data(), values.data(), static_cast<std::int64_t>(values.size()));
  return values;
}

TEST_CASE("fp16 products are fp32 products of rounded operands, whatever cuts them") {
  for (const HalfProduct& p :
       {HalfProduct{3, 5, 7}, HalfProduct{130, 300, 70, true, false, true},
        HalfProduct{40, 33, 2500, false, false}, HalfProduct{49, 301, 130, true, true}}) {
    CAPTURE(p.m);
    const Vector a = random_vector(p.m * p.k, 1), b = random_vector(p.k * p.n, 2);
    const Vector ra = rounded(a), rb = rounded(b);
    constexpr DType kWide = DType::kF32;
    const Vector expected = multiply(p, 1, ra.data(), kWide, rb.data(), kWide, Arithmetic::kFp32);
    const Vector got = multiply(p, 1, a.data(), kWide, b.data(), kWide, Arithmetic::kFp16);
    CHECK(distance(got, expected) < 1e-4);
    const Vector exact = multiply(p, 1, a.data(), kWide, b.data(), kWide, Arithmetic::kFp32);
    CHECK(distance(got, exact) > 2 * distance(got, expected));
    CHECK(multiply(p, 3, a.data(), kWide, b.data(), kWide, Arithmetic::kFp16) == got);
    // A weight that is kept in bf16.
    std::vector<std::uint16_t> narrow(b.size());
    bf16_from_float(b.data(), narrow.data(), static_cast<std::int64_t>(b.size()));
    Vector widened(b.size());
    float_from_bf16(narrow.data(), widened.data(), static_cast<std::int64_t>(b.size()));
    CHECK(multiply(p, 2, a.data(), kWide, narrow.data(), DType::kBF16, Arithmetic::kFp16) ==
          multiply(p, 1, a.data(), kWide, widened.data(), kWide, Arithmetic::kFp16));
  }
}

TEST_CASE("what fp16 does not hold overflows, or is lost, in a product") {
  const HalfProduct p{16, 16, 16};
  Vector a(256, 1.0f), b(256, 1.0f);
  a[0] = 65520.0f;
  CHECK(std::isinf(
      multiply(p, 1, a.data(), DType::kF32, b.data(), DType::kF32, Arithmetic::kFp16)[0]));
  // A sum is not rounded.
  a.assign(256, 60000.0f);
  CHECK(multiply(p, 1, a.data(), DType::kF32, b.data(), DType::kF32, Arithmetic::kFp16)[0] ==
        16 * 60000.0f);
  a.assign(256, 0x1p-26f);
  CHECK(multiply(p, 1, a.data(), DType::kF32, b.data(), DType::kF32, Arithmetic::kFp16)[0] == 0);
}

}  // namespace
}  // namespace troupe::train::tests

#include "train/cpu/packed_product.h"

#include <array>
#include <memory>

#include "tests/train/cpu/operator_fixture.h"

namespace troupe::train::tests {
namespace {

struct PackedCase {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
};

struct PackedOperands {
  explicit PackedOperands(const PackedCase& s)
      : a(random_vector((s.m + 2) * (s.k + 2), 1)),
        b(random_vector((s.n + 2) * (s.k + 2), 2)),
        c(random_vector(s.m * (s.n + 5), 3)),
        scratch(kernels::packed_scratch_floats() + 16) {}

  Gemm gemm(const PackedCase& s) {
    return {.m = s.m,
            .n = s.n,
            .k = s.k,
            .a = a.data(),
            .a_stride = (s.transpose_a ? s.m : s.k) + 2,
            .transpose_a = s.transpose_a,
            .b = b.data(),
            .b_stride = (s.transpose_b ? s.k : s.n) + 2,
            .transpose_b = s.transpose_b,
            .c = c.data(),
            .c_stride = s.n + 5,
            .accumulate = s.accumulate};
  }
  float* aligned() {
    void* at = scratch.data();
    std::size_t room = scratch.size() * sizeof(float);
    return static_cast<float*>(std::align(64, 64, at, room));
  }

  Vector a, b, c, scratch;
};

std::vector<PackedCase> packed_cases() {
  std::vector<PackedCase> cases;
  for (const bool transpose_a : {false, true})
    for (const bool transpose_b : {false, true})
      for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 1, 1},
                                    {8, 48, 16},
                                    {45, 100, 37},
                                    {70, 49, 530},
                                    {33, 320, 600},
                                    {5, 3200, 50}})
        cases.push_back({m, n, k, transpose_a, transpose_b, (m + n) % 2 == 0});
  return cases;
}

double packed_element(const PackedCase& s, const Gemm& g, std::int64_t i, std::int64_t j) {
  const auto* a = static_cast<const float*>(g.a);
  const auto* b = static_cast<const float*>(g.b);
  double sum = 0;
  for (std::int64_t k = 0; k < s.k; ++k)
    sum += static_cast<double>(a[s.transpose_a ? k * g.a_stride + i : i * g.a_stride + k]) *
           b[s.transpose_b ? j * g.b_stride + k : k * g.b_stride + j];
  return sum;
}

TEST_CASE("packed products: values, and nothing beside them is written") {
  if (!kernels::has_packed_products()) {
    MESSAGE("SKIPPED: the processor has no AVX2");
    return;
  }
  for (const PackedCase& s : packed_cases()) {
    CAPTURE(s.m);
    CAPTURE(s.n);
    CAPTURE(s.k);
    CAPTURE(s.transpose_a);
    CAPTURE(s.transpose_b);
    PackedOperands operands(s);
    const Vector before = operands.c;
    const Gemm g = operands.gemm(s);
    kernels::multiply_packed(g, operands.aligned());
    double worst = 0;
    for (std::int64_t i = 0; i < s.m; ++i) {
      for (std::int64_t j = 0; j < s.n + 5; ++j) {
        const auto at = static_cast<std::size_t>(i * (s.n + 5) + j);
        const double expected = (j >= s.n || s.accumulate ? before[at] : 0.0) +
                                (j < s.n ? packed_element(s, g, i, j) : 0.0);
        worst = std::max(worst, std::abs(operands.c[at] - expected));
      }
    }
    CHECK(worst < 1e-4);
  }
}

TEST_CASE("packed products: bits do not depend on how they are cut") {
  if (!kernels::has_packed_products()) return;
  for (const PackedCase& s : packed_cases()) {
    CAPTURE(s.m);
    CAPTURE(s.n);
    CAPTURE(s.k);
    PackedOperands whole(s), parts(s);
    kernels::multiply_packed(whole.gemm(s), whole.aligned());
    const std::int64_t rows = s.m / 3 + 1, columns = s.n / 2 + 1, depth = s.k / 2 + 1;
    for (std::int64_t i = 0; i < s.m; i += rows) {
      for (std::int64_t j = 0; j < s.n; j += columns) {
        for (std::int64_t k = 0; k < s.k; k += depth) {
          Gemm g = parts.gemm(s);
          g.m = std::min(rows, s.m - i), g.n = std::min(columns, s.n - j);
          g.k = std::min(depth, s.k - k);
          g.a = parts.a.data() + (s.transpose_a ? k * g.a_stride + i : i * g.a_stride + k);
          g.b = parts.b.data() + (s.transpose_b ? j * g.b_stride + k : k * g.b_stride + j);
          g.c += i * g.c_stride + j;
          g.accumulate = s.accumulate || k > 0;
          kernels::multiply_packed(g, parts.aligned());
        }
      }
    }
    CHECK(whole.c == parts.c);
  }
}

}  // namespace
}  // namespace troupe::train::tests

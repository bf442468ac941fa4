#include "train/cpu/small_product.h"

#include "tests/train/cpu/operator_fixture.h"

namespace troupe::train::tests {
namespace {

struct SmallCase {
  std::int64_t m, n, k;
  bool transposed, accumulate;
};

struct SmallOperands {
  explicit SmallOperands(const SmallCase& s)
      : a(random_vector(s.m * s.k + 64, 1)),
        b(random_vector(s.k * (s.n + 3), 2)),
        c(random_vector(s.m * (s.n + 5), 3)) {}
  Vector a, b, c;
};

kernels::SmallProduct product_of(const SmallCase& s, SmallOperands& operands) {
  return {.m = s.m,
          .n = s.n,
          .k = s.k,
          .a = operands.a.data(),
          .a_row = s.transposed ? 1 : s.k,
          .a_column = s.transposed ? s.m : 1,
          .b = operands.b.data(),
          .b_stride = s.n + 3,
          .c = operands.c.data(),
          .c_stride = s.n + 5,
          .accumulate = s.accumulate};
}

const SmallCase kSmallCases[] = {{1, 1, 1, false, false},  {8, 48, 5, false, true},
                                 {9, 64, 48, true, false}, {13, 61, 33, false, false},
                                 {64, 80, 16, true, true}, {3, 100, 7, false, true},
                                 {20, 6, 70, true, false}};

TEST_CASE("small products: values, and nothing beside them is written") {
  for (const SmallCase& s : kSmallCases) {
    CAPTURE(s.m);
    CAPTURE(s.n);
    SmallOperands operands(s);
    const Vector before = operands.c;
    const kernels::SmallProduct p = product_of(s, operands);
    kernels::multiply(p);
    for (std::int64_t i = 0; i < s.m; ++i) {
      for (std::int64_t j = 0; j < s.n + 5; ++j) {
        const auto at = static_cast<std::size_t>(i * (s.n + 5) + j);
        double sum = j >= s.n || s.accumulate ? before[at] : 0.0;
        for (std::int64_t k = 0; k < s.k && j < s.n; ++k)
          sum += static_cast<double>(p.a[i * p.a_row + k * p.a_column]) * p.b[k * p.b_stride + j];
        CHECK(operands.c[at] == doctest::Approx(sum).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("small products: an element's bits do not depend on what is computed beside it") {
  for (const SmallCase& s : kSmallCases) {
    CAPTURE(s.m);
    CAPTURE(s.n);
    SmallOperands whole(s), parts(s);
    kernels::multiply(product_of(s, whole));
    for (std::int64_t i = 0; i < s.m; ++i) {
      for (std::int64_t j = 0; j < s.n; j += 7) {
        kernels::SmallProduct part = product_of(s, parts);
        part.m = 1, part.n = std::min<std::int64_t>(7, s.n - j);
        part.a += i * part.a_row, part.b += j, part.c += i * part.c_stride + j;
        kernels::multiply(part);
      }
    }
    CHECK(whole.c == parts.c);
  }
}

}  // namespace
}  // namespace troupe::train::tests

// bf16 products: by the processor's instructions and by rounded fp32 operands.

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "tests/train/cpu/operator_fixture.h"
#include "train/cpu/compiled_gemm.h"
#include "train/cpu/isa.h"
#include "train/tensor/convert.h"

namespace troupe::train::tests {
namespace {

// One product in every form in which its operands may come.
struct Product {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
  Vector a, b, start;
  std::vector<std::uint16_t> a_bf16, b_bf16;

  Product(std::int64_t m_, std::int64_t n_, std::int64_t k_, int flags)
      : m(m_),
        n(n_),
        k(k_),
        transpose_a(flags & 1),
        transpose_b(flags & 2),
        accumulate(flags & 4),
        a(random_vector(m_ * k_, 1)),
        b(random_vector(k_ * n_, 2)),
        start(random_vector(m_ * n_, 3)),
        a_bf16(a.size()),
        b_bf16(b.size()) {
    bf16_from_float(a.data(), a_bf16.data(), m * k);
    bf16_from_float(b.data(), b_bf16.data(), k * n);
  }

  Vector run(const CpuOptions& options, int threads, bool a_given, bool b_given) const {
    return run(options, threads, a_given, b_given, m, n);
  }
  // With operands that are parts of matrices of `whole_m` rows and `whole_n` columns of C.
  Vector run(const CpuOptions& options, int threads, bool a_given, bool b_given,
             std::int64_t whole_m, std::int64_t whole_n) const {
    Arena arena(threads);
    const auto operators = make_cpu_operators(arena, options);
    Vector c = start;
    Gemm gemm{.m = m,
              .n = n,
              .k = k,
              .a = a.data(),
              .a_stride = transpose_a ? whole_m : k,
              .transpose_a = transpose_a,
              .b = b.data(),
              .b_stride = transpose_b ? k : whole_n,
              .transpose_b = transpose_b,
              .c = c.data(),
              .c_stride = n,
              .accumulate = accumulate,
              .arithmetic = Arithmetic::kBf16};
    if (a_given) gemm.a = a_bf16.data(), gemm.a_type = DType::kBF16;
    if (b_given) gemm.b = b_bf16.data(), gemm.b_type = DType::kBF16;
    operators->gemm(gemm);
    return c;
  }

  // The greatest difference, in some elements, from sums in double over rounded operands.
  double error_of(const Vector& c) const {
    double worst = 0;
    for (std::int64_t i = 0; i < m; i += 1 + m / 7)
      for (std::int64_t j = 0; j < n; j += 1 + n / 9) {
        double sum = accumulate ? start[static_cast<std::size_t>(i * n + j)] : 0.0;
        for (std::int64_t t = 0; t < k; ++t)
          sum +=
              static_cast<double>(bf16_to_float(
                  a_bf16[static_cast<std::size_t>(transpose_a ? t * m + i : i * k + t)])) *
              bf16_to_float(b_bf16[static_cast<std::size_t>(transpose_b ? j * k + t : t * n + j)]);
        worst = std::max(worst, std::abs(sum - c[static_cast<std::size_t>(i * n + j)]));
      }
    return worst;
  }
};

bool same_bits(const Vector& a, const Vector& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Shape {
  std::int64_t m, n, k;
};

TEST_CASE("bf16 products: every layout, type and thread count against rounded operands in double") {
  for (const Shape s : {Shape{3, 5, 7}, Shape{130, 300, 70}, Shape{1, 800, 64}, Shape{40, 33, 5000},
                        Shape{17, 49, 1025}, Shape{300, 97, 3}, Shape{29, 3000, 1100},
                        Shape{17, 203, 70}, Shape{49, 301, 2050}})
    for (int flags = 0; flags < 8; ++flags) {
      const Product product(s.m, s.n, s.k, flags);
      CAPTURE(s.m);
      CAPTURE(flags);
      for (const bool native : {true, false}) {
        const CpuOptions options{.native_bf16 = native};
        const Vector c = product.run(options, 1, false, false);
        CHECK(product.error_of(c) < 1e-4);
        CHECK(same_bits(c, product.run(options, 3, false, false)));
        // Who rounds an operand changes nothing that the reference can see.
        for (const auto& [a, b] : {std::pair{false, true}, {true, false}, {true, true}})
          CHECK(product.error_of(product.run(options, 2, a, b)) < 1e-4);
      }
    }
}

TEST_CASE("packed bf16 products: bits depend neither on the operands' types nor on m and n") {
  Arena arena(1);
  if (!make_cpu_operators(arena)->fast_bf16() || cpu_isa_level() != kCpuAvx512Bf16) {
    MESSAGE("skipped: this processor has no AVX512-BF16, or AMX, too");
    return;
  }
  for (const int flags : {0, 1, 2, 3}) {
    const Product product(150, 130, 2500, flags);
    const Vector c = product.run({}, 1, false, false);
    for (const auto& [a, b] : {std::pair{false, true}, {true, false}, {true, true}})
      CHECK(same_bits(c, product.run({}, 2, a, b)));
    // Some of its rows and columns alone.
    Product part = product;
    part.m = 20, part.n = 50;
    const Vector few = part.run({}, 1, false, false, 150, 130);
    for (std::size_t i = 0; i < 20; ++i)
      CHECK(std::equal(few.begin() + i * 50, few.begin() + i * 50 + 50, c.begin() + i * 130));
  }
}

TEST_CASE("bf16 products larger than the staging memory have the same bits with any threads") {
  for (const Shape s : {Shape{1700, 40, 2100}, Shape{60, 1700, 2100}, Shape{1100, 1700, 2050}})
    for (const int flags : {1, 2}) {
      const Product product(s.m, s.n, s.k, flags);
      for (const bool native : {true, false}) {
        const Vector c = product.run({.native_bf16 = native}, 1, false, false);
        CHECK(product.error_of(c) < 1e-4);
        CHECK(same_bits(c, product.run({.native_bf16 = native}, 2, false, false)));
      }
    }
}

TEST_CASE("values that are not finite are not hidden by bf16") {
  for (const bool native : {true, false}) {
    Product product(20, 30, 40, 0);
    product.a[5 * 40 + 7] = std::numeric_limits<float>::quiet_NaN();
    product.a[6 * 40 + 7] = std::numeric_limits<float>::infinity();
    product.a[7 * 40 + 7] = 3.4e38f;  // rounds up to infinity
    const Vector c = product.run({.native_bf16 = native}, 1, false, true);
    for (std::size_t j = 0; j < 30; ++j) {
      CHECK(std::isnan(c[5 * 30 + j]));
      CHECK(!std::isfinite(c[6 * 30 + j]));
      CHECK(!std::isfinite(c[7 * 30 + j]));
      CHECK(std::isfinite(c[8 * 30 + j]));
    }
  }
}

TEST_CASE("the gradient of the logits in bf16 is that in fp32, rounded; losses are the same") {
  OperatorFixture f(2);
  for (const std::int64_t classes : {1, 33, 70'000}) {
    const std::int64_t rows = 5;
    Vector logits = random_vector(rows * classes, 1), copy = logits;
    const std::vector<std::int32_t> labels(rows, static_cast<std::int32_t>(classes / 2));
    Vector losses(rows), expected_losses(rows);
    std::vector<std::uint16_t> gradient(logits.size()), expected(logits.size());
    f.operators->cross_entropy(copy.data(), labels.data(), expected_losses.data(), 0.25f, true,
                               rows, classes);
    bf16_from_float(copy.data(), expected.data(), rows * classes);
    f.operators->cross_entropy_bf16(logits.data(), labels.data(), losses.data(), 0.25f,
                                    gradient.data(), rows, classes);
    CHECK(losses == expected_losses);
    CHECK(gradient == expected);
  }
}

TEST_CASE("an embedding in bf16 is read as fp32") {
  OperatorFixture f(2);
  const std::vector<std::int32_t> ids = {2, 0, 2, 1};
  const Vector values = random_vector(3 * 70, 1);
  std::vector<std::uint16_t> table(values.size());
  bf16_from_float(values.data(), table.data(), 3 * 70);
  Vector out(4 * 70);
  f.operators->embedding_forward(ids.data(), table.data(), DType::kBF16, out.data(), 4, 70);
  for (std::size_t row = 0; row < 4; ++row)
    for (std::size_t c = 0; c < 70; ++c)
      CHECK(out[row * 70 + c] == bf16_to_float(table[static_cast<std::size_t>(ids[row]) * 70 + c]));
}

TEST_CASE("bf16 products whose B is read where it lies have the bits of those that pack it") {
  Arena arena(1);
  if (!make_cpu_operators(arena)->fast_bf16() || cpu_isa_level() != kCpuAvx512Bf16) {
    MESSAGE("skipped: this processor has no AVX512-BF16, or AMX, too");
    return;
  }
  // Rows of C that end within a vector, columns that end within 8, one pass of k and several.
  for (const Shape s : {Shape{16, 64, 2}, Shape{33, 135, 288}, Shape{50, 1001, 2100}})
    for (const bool accumulate : {false, true}) {
      const Product product(s.m, s.n, s.k, accumulate ? 6 : 2);
      const Vector packed = product.run({}, 1, false, false);
      CHECK(same_bits(packed, product.run({}, 1, false, true)));
      CHECK(same_bits(packed, product.run({}, 3, true, true)));
    }
}

TEST_CASE("whether bf16 is fast follows the processor and the option") {
  Arena arena(1);
  CHECK(!make_cpu_operators(arena, {.native_bf16 = false})->fast_bf16());
  CHECK(cpu_bf16_scratch_bytes(*make_cpu_operators(arena, {.native_bf16 = false}), 1) < 13u << 20);
  if (make_cpu_operators(arena)->fast_bf16()) CHECK(cpu_isa_level() >= kCpuAvx512Bf16);
}

// oneDNN gave the primitive of one to the other, with another need of scratch memory.
TEST_CASE("products of single elements, whatever the distance of their rows") {
  if (!cpu_multiplies_bf16()) {
    MESSAGE("skipped: no bf16 products on this processor");
    return;
  }
  CompiledGemms gemms(1);
  const std::uint16_t two = float_to_bf16(2.0f), three = float_to_bf16(3.0f);
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const std::int64_t stride : {1, 32, 1}) {
        float out = 0;
        gemms.run({.m = 1,
                   .n = 1,
                   .k = 1,
                   .a = &two,
                   .a_type = DType::kBF16,
                   .a_stride = stride,
                   .transpose_a = transpose_a,
                   .b = &three,
                   .b_type = DType::kBF16,
                   .b_stride = 1,
                   .transpose_b = transpose_b,
                   .c = &out,
                   .c_stride = 1,
                   .arithmetic = Arithmetic::kBf16},
                  0);
        CHECK(out == 6.0f);
      }
    }
  }
}

}  // namespace
}  // namespace troupe::train::tests

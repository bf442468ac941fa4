// The library's products over a stand-in of libcublasLt: layouts, transposes, strides, types and
// scales, against the product in row-major terms.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "tests/train/cuda/library/products_fixture.h"
#include "train/tensor/convert.h"

namespace troupe::tests {
namespace {

// Operands and result as types, and what they are computed in.
struct ProductTypes {
  const char* name;
  int a, b, c, arithmetic;
};
constexpr ProductTypes kWide[] = {
    {"f32", TROUPE_CUDA_F32, TROUPE_CUDA_F32, TROUPE_CUDA_F32, TROUPE_CUDA_COMPUTE_F32},
    {"tf32", TROUPE_CUDA_F32, TROUPE_CUDA_F32, TROUPE_CUDA_F32, TROUPE_CUDA_COMPUTE_TF32},
    {"bf16 to f32", TROUPE_CUDA_BF16, TROUPE_CUDA_BF16, TROUPE_CUDA_F32, TROUPE_CUDA_COMPUTE_BF16},
    {"bf16", TROUPE_CUDA_BF16, TROUPE_CUDA_BF16, TROUPE_CUDA_BF16, TROUPE_CUDA_COMPUTE_BF16}};
constexpr ProductTypes kNarrow[] = {
    {"e4m3", TROUPE_CUDA_E4M3, TROUPE_CUDA_E4M3, TROUPE_CUDA_BF16, TROUPE_CUDA_COMPUTE_FP8},
    {"e5m2 with e4m3", TROUPE_CUDA_E5M2, TROUPE_CUDA_E4M3, TROUPE_CUDA_BF16,
     TROUPE_CUDA_COMPUTE_FP8},
    {"e4m3 with e5m2", TROUPE_CUDA_E4M3, TROUPE_CUDA_E5M2, TROUPE_CUDA_F32,
     TROUPE_CUDA_COMPUTE_FP8}};

struct Sizes {
  std::int64_t m, n, k;
};

// What stands in c, as its type holds the value.
float as_stored(int type, double value) {
  const auto single = static_cast<float>(value);
  return type == TROUPE_CUDA_BF16 ? train::bf16_to_float(train::float_to_bf16(single)) : single;
}

// By every algorithm that is named; how many those were.
int check_product(Products& products, const ProductTypes& types, const Sizes& s, bool ta, bool tb,
                  bool accumulate, std::int64_t gap, std::int64_t alignment_bytes) {
  StoredMatrix a(types.a, ta ? s.k : s.m, ta ? s.m : s.k, (ta ? s.m : s.k) + gap);
  StoredMatrix b(types.b, tb ? s.n : s.k, tb ? s.k : s.n, (tb ? s.k : s.n) + gap);
  a.fill(1), b.fill(2);
  StoredMatrix shape(types.c, s.m, s.n, s.n + gap);
  TroupeCudaGemm gemm = gemm_of(a, ta, b, tb, shape, types.arithmetic);
  gemm.accumulate = accumulate;
  gemm.alignment_bytes = static_cast<std::int32_t>(alignment_bytes);
  const std::vector<double> product = plain_product(gemm, a, b);
  const bool narrow = types.arithmetic == TROUPE_CUDA_COMPUTE_FP8;
  const float a_scale = 0.25f, b_scale = 8.0f;
  const double scale = narrow ? 2.0 : 1.0;
  const auto algorithms = products.algorithms(gemm);
  for (const TroupeCudaAlgorithm& algorithm : algorithms) {
    StoredMatrix c(types.c, s.m, s.n, s.n + gap);
    for (std::int64_t i = 0; i < s.m; ++i)
      for (std::int64_t j = 0; j < s.n; ++j)  // what is not added to is not read
        c.set(i, j,
              accumulate ? static_cast<float>(i % 3) : std::numeric_limits<float>::quiet_NaN());
    Workspace workspace(algorithm.workspace_bytes);
    const int code =
        narrow ? products.table.gemm_scaled(&products.stream, &gemm, &algorithm, a.data(), &a_scale,
                                            b.data(), &b_scale, c.data(), workspace.data(),
                                            workspace.size())
               : products.table.gemm(&products.stream, &gemm, &algorithm, a.data(), b.data(),
                                     c.data(), workspace.data(), workspace.size());
    REQUIRE_MESSAGE(code == TROUPE_CUDA_OK, train::cuda::last_failure());
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < s.m; ++i)
      for (std::int64_t j = 0; j < s.n; ++j) {
        const double there = accumulate ? static_cast<double>(i % 3) : 0.0;
        wrong += c.get(i, j) !=
                 as_stored(types.c, product[static_cast<std::size_t>(i * s.n + j)] * scale + there);
      }
    CHECK(wrong == 0);
    CHECK(c.gaps_are_untouched());
  }
  return static_cast<int>(algorithms.size());
}

TEST_CASE("products of all transpositions, types and strides are the row-major ones") {
  Products products;
  for (const ProductTypes& types : kWide) {
    for (const Sizes& s : {Sizes{5, 24, 40}, Sizes{1, 8, 16}, Sizes{3, 5, 7}, Sizes{24, 1, 2}}) {
      for (int flags = 0; flags < 16; ++flags) {
        const std::int64_t gap = flags & 8 ? (s.k % 8 ? 3 : 8) : 0;
        CAPTURE(std::string(types.name));
        CAPTURE(s.m);
        CAPTURE(flags);
        const auto check = [&](std::int64_t alignment) {
          return check_product(products, types, s, (flags & 1) != 0, (flags & 2) != 0,
                               (flags & 4) != 0, gap, alignment);
        };
        CHECK(check(types.a == TROUPE_CUDA_F32 ? 4 : 2) >= 1);
        CHECK(check(16) >= 1);
      }
    }
  }
}

TEST_CASE("products of 8 bits are those of the codes' values, by both scales") {
  Products products;
  for (const ProductTypes& types : kNarrow)
    for (const Sizes& s : {Sizes{5, 32, 48}, Sizes{1, 16, 16}, Sizes{33, 16, 64}})
      for (const bool accumulate : {false, true})
        for (const std::int64_t gap : {0, 16}) {
          CAPTURE(std::string(types.name));
          CAPTURE(s.m);
          CHECK(check_product(products, types, s, false, true, accumulate, gap, 16) >= 1);
        }
}

// A linear layer's products as train/model asks for them: rows of outputs that belong to several
// layers, weights as [out, in] and, transposed, [in, out].
TEST_CASE("a linear layer's products, forward and backward, with weights of either shape") {
  Products products;
  constexpr std::int64_t kRows = 6, kIn = 16, kOut = 24, kAllOut = 40, kColumn = 8;
  for (const bool transposed : {false, true}) {
    CAPTURE(transposed);
    const int type = TROUPE_CUDA_BF16, arithmetic = TROUPE_CUDA_COMPUTE_BF16;
    StoredMatrix x(type, kRows, kIn, kIn), y(type, kRows, kAllOut, kAllOut),
        weight(type, transposed ? kIn : kOut, transposed ? kOut : kIn, transposed ? kOut : kIn),
        dx(type, kRows, kIn, kIn),
        dweight(TROUPE_CUDA_F32, weight.rows, weight.columns, weight.stride);
    x.fill(3), weight.fill(4), y.fill(5), dweight.fill(6);
    const auto weight_at = [&](std::int64_t out, std::int64_t in) -> double {
      return transposed ? weight.get(in, out) : weight.get(out, in);
    };
    auto* columns = static_cast<std::uint16_t*>(y.data()) + kColumn;
    const auto run = [&](TroupeCudaGemm gemm, const void* a, const void* b, void* c) {
      const auto algorithm = products.algorithms(gemm).at(0);
      Workspace workspace(algorithm.workspace_bytes);
      const int code = products.table.gemm(&products.stream, &gemm, &algorithm, a, b, c,
                                           workspace.data(), workspace.size());
      REQUIRE_MESSAGE(code == TROUPE_CUDA_OK, train::cuda::last_failure());
    };
    // dW += dyᵀ·x, as it is or turned round.
    std::vector<double> expected;
    for (std::int64_t i = 0; i < dweight.rows; ++i)
      for (std::int64_t j = 0; j < dweight.columns; ++j) {
        const std::int64_t out = transposed ? j : i, in = transposed ? i : j;
        double sum = dweight.get(i, j);
        for (std::int64_t row = 0; row < kRows; ++row)
          sum += static_cast<double>(y.get(row, kColumn + out)) * x.get(row, in);
        expected.push_back(sum);
      }
    TroupeCudaGemm g{.m = kOut,
                     .n = kIn,
                     .k = kRows,
                     .a_stride = kAllOut,
                     .b_stride = kIn,
                     .c_stride = dweight.stride,
                     .a_type = type,
                     .b_type = type,
                     .c_type = TROUPE_CUDA_F32,
                     .transpose_a = 1,
                     .transpose_b = 0,
                     .accumulate = 1,
                     .arithmetic = arithmetic,
                     .alignment_bytes = 16};
    if (transposed) std::swap(g.m, g.n), std::swap(g.a_stride, g.b_stride);
    run(g, transposed ? x.data() : columns, transposed ? columns : x.data(), dweight.data());
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < dweight.rows; ++i)
      for (std::int64_t j = 0; j < dweight.columns; ++j)
        wrong += dweight.get(i, j) != expected[static_cast<std::size_t>(i * dweight.columns + j)];
    CHECK(wrong == 0);
    // dx = dy·W.
    run({.m = kRows,
         .n = kIn,
         .k = kOut,
         .a_stride = kAllOut,
         .b_stride = weight.stride,
         .c_stride = kIn,
         .a_type = type,
         .b_type = type,
         .c_type = type,
         .transpose_a = 0,
         .transpose_b = transposed,
         .arithmetic = arithmetic,
         .alignment_bytes = 16},
        columns, weight.data(), dx.data());
    wrong = 0;
    for (std::int64_t row = 0; row < kRows; ++row)
      for (std::int64_t in = 0; in < kIn; ++in) {
        double sum = 0;
        for (std::int64_t out = 0; out < kOut; ++out)
          sum += y.get(row, kColumn + out) * weight_at(out, in);
        wrong += dx.get(row, in) != sum;
      }
    CHECK(wrong == 0);
    // y = x·Wᵀ into columns of a wider row, the others untouched.
    run({.m = kRows,
         .n = kOut,
         .k = kIn,
         .a_stride = kIn,
         .b_stride = weight.stride,
         .c_stride = kAllOut,
         .a_type = type,
         .b_type = type,
         .c_type = type,
         .transpose_a = 0,
         .transpose_b = !transposed,
         .arithmetic = arithmetic,
         .alignment_bytes = 16},
        x.data(), weight.data(), columns);
    StoredMatrix before(type, kRows, kAllOut, kAllOut);
    before.fill(5);
    wrong = 0;
    for (std::int64_t row = 0; row < kRows; ++row)
      for (std::int64_t at = 0; at < kAllOut; ++at) {
        double sum = before.get(row, at);
        if (at >= kColumn && at < kColumn + kOut) {
          sum = 0;
          for (std::int64_t in = 0; in < kIn; ++in)
            sum += x.get(row, in) * weight_at(at - kColumn, in);
        }
        wrong += y.get(row, at) != sum;
      }
    CHECK(wrong == 0);
  }
}

TEST_CASE("tf32 rounds operands, fp32 does not") {
  Products products;
  // 1 + 2⁻¹², which 10 bits of fraction do not hold.
  StoredMatrix a(TROUPE_CUDA_F32, 1, 4, 4), b(TROUPE_CUDA_F32, 4, 4, 4),
      c(TROUPE_CUDA_F32, 1, 4, 4);
  for (std::int64_t i = 0; i < 4; ++i) {
    a.set(0, i, 1.0f + 0x1p-12f);
    for (std::int64_t j = 0; j < 4; ++j) b.set(i, j, i == j ? 1.0f : 0.0f);
  }
  for (const bool tf32 : {false, true}) {
    const TroupeCudaGemm gemm =
        gemm_of(a, false, b, false, c, tf32 ? TROUPE_CUDA_COMPUTE_TF32 : TROUPE_CUDA_COMPUTE_F32);
    const auto algorithm = products.algorithms(gemm, 0).at(0);
    REQUIRE(products.table.gemm(&products.stream, &gemm, &algorithm, a.data(), b.data(), c.data(),
                                nullptr, 0) == TROUPE_CUDA_OK);
    CHECK(c.get(0, 2) == (tf32 ? 1.0f : 1.0f + 0x1p-12f));
  }
}

TEST_CASE("algorithms are of the product, the workspace and the alignment that were asked for") {
  Products products;
  StoredMatrix a(TROUPE_CUDA_BF16, 4, 16, 16), b(TROUPE_CUDA_BF16, 8, 16, 16),
      c(TROUPE_CUDA_F32, 4, 8, 8), behind(TROUPE_CUDA_BF16, 4, 16, 16, 1);
  TroupeCudaGemm gemm = gemm_of(a, false, b, true, c, TROUPE_CUDA_COMPUTE_BF16);
  gemm.alignment_bytes = 16;
  const auto all = products.algorithms(gemm);
  REQUIRE(all.size() >= 3);
  CHECK(all.front().workspace_bytes > 0);
  for (const TroupeCudaAlgorithm& algorithm : products.algorithms(gemm, 0))
    CHECK(algorithm.workspace_bytes == 0);
  const auto run = [&](const TroupeCudaGemm& g, const TroupeCudaAlgorithm& algorithm, void* from,
                       void* workspace, std::int64_t bytes) {
    return products.table.gemm(&products.stream, &g, &algorithm, from, b.data(), c.data(),
                               workspace, bytes);
  };
  Workspace workspace(all.front().workspace_bytes);
  // Less workspace than it needs: told before the library is asked.
  CHECK(run(gemm, all.front(), a.data(), workspace.data(), workspace.size() - 1) ==
        TROUPE_CUDA_INVALID);
  CHECK(std::string(train::cuda::last_failure()).find("needs a workspace") != std::string::npos);
  // Elsewhere than was said.
  CHECK(run(gemm, all.front(), behind.data(), workspace.data(), workspace.size()) ==
        TROUPE_CUDA_INVALID);
  CHECK(std::string(train::cuda::last_failure()).find("lies where the algorithm cannot") !=
        std::string::npos);
  // Another product's.
  TroupeCudaGemm added = gemm;
  added.c_stride = 9;
  CHECK(run(added, all.front(), a.data(), workspace.data(), workspace.size()) ==
        TROUPE_CUDA_INVALID);
  CHECK(std::string(train::cuda::last_failure()).find("another product") != std::string::npos);
  // What is said to lie anywhere may do so.
  gemm.alignment_bytes = 2;
  for (const TroupeCudaAlgorithm& algorithm : products.algorithms(gemm)) {
    Workspace enough(algorithm.workspace_bytes);
    CHECK(run(gemm, algorithm, behind.data(), enough.data(), enough.size()) == TROUPE_CUDA_OK);
  }
}

TEST_CASE(
    "a product that the library cannot compute has no algorithms, and one that is none fails") {
  Products products;
  StoredMatrix a(TROUPE_CUDA_E4M3, 4, 16, 16), b(TROUPE_CUDA_E4M3, 16, 16, 16),
      c(TROUPE_CUDA_BF16, 4, 16, 17);
  // Rows of the result that do not begin at 16 bytes.
  CHECK(products.algorithms(gemm_of(a, false, b, true, c, TROUPE_CUDA_COMPUTE_FP8)).empty());
  std::int32_t count = 0;
  TroupeCudaAlgorithm algorithm{};
  const auto ask = [&](const TroupeCudaGemm& gemm) {
    return products.table.gemm_algorithms(&products.context, &gemm, 0, 1, &algorithm, &count);
  };
  TroupeCudaGemm gemm = gemm_of(a, false, b, true, c, TROUPE_CUDA_COMPUTE_FP8);
  gemm.transpose_b = 0;
  CHECK(ask(gemm) == TROUPE_CUDA_INVALID);
  gemm = gemm_of(a, false, b, true, c, TROUPE_CUDA_COMPUTE_BF16);
  CHECK(ask(gemm) == TROUPE_CUDA_INVALID);
  gemm.m = 0;
  CHECK(ask(gemm) == TROUPE_CUDA_INVALID);
  CHECK(products.table.gemm_algorithms(nullptr, &gemm, 0, 1, &algorithm, &count) ==
        TROUPE_CUDA_INVALID);
}

TEST_CASE("what products make in the library is given back") {
  std::int64_t before = 0;
  {
    Products products;
    before = stand_in_objects();
    StoredMatrix a(TROUPE_CUDA_F32, 2, 3, 3), b(TROUPE_CUDA_F32, 3, 2, 2),
        c(TROUPE_CUDA_F32, 2, 2, 2);
    const TroupeCudaGemm gemm = gemm_of(a, false, b, false, c, TROUPE_CUDA_COMPUTE_F32);
    const auto algorithm = products.algorithms(gemm, 0).at(0);
    CHECK(products.table.gemm(&products.stream, &gemm, &algorithm, a.data(), b.data(), c.data(),
                              nullptr, 0) == TROUPE_CUDA_OK);
    CHECK(stand_in_objects() == before + 1);  // the context's handle
  }
  CHECK(stand_in_objects() == before);
}

// --- what follows a product in it

// c (m, n) of a product with an epilogue, by every algorithm that is named.
struct EpilogueCase {
  int epilogue;
  ProductTypes types;
  Sizes sizes;
  bool transpose_b;
  std::int64_t gap;
};

double tanh_gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (x + 0.044715 * x * x * x)));
}
// By differences: another way than the formula that is tested.
double gelu_slope_at(double x) { return (tanh_gelu(x + 1e-5) - tanh_gelu(x - 1e-5)) / 2e-5; }

// Of a value of about this size, what its storing may cost, and fp32's hyperbolic tangent.
double stored_error(int type, double value) {
  return (type == TROUPE_CUDA_BF16 ? 0x1p-8 : 1e-6) * std::abs(value) + 1e-5;
}

int check_epilogue(Products& products, const EpilogueCase& one) {
  const Sizes& s = one.sizes;
  const bool tb = one.transpose_b;
  StoredMatrix a(one.types.a, s.m, s.k, s.k),
      b(one.types.b, tb ? s.n : s.k, tb ? s.k : s.n, tb ? s.k : s.n),
      bias(one.types.c, 1, s.n, s.n), kept(one.types.c, s.m, s.n, s.n + one.gap);
  a.fill(1, 1), b.fill(2, 1), bias.fill(3), kept.fill(4);
  const bool adds_bias = one.epilogue != TROUPE_CUDA_EPILOGUE_GELU_GRADIENT;
  const bool gelu = one.epilogue == TROUPE_CUDA_EPILOGUE_BIAS_GELU,
             gradient = one.epilogue == TROUPE_CUDA_EPILOGUE_GELU_GRADIENT;
  StoredMatrix shape(one.types.c, s.m, s.n, s.n + one.gap);
  TroupeCudaGemm gemm = gemm_of(a, false, b, tb, shape, one.types.arithmetic);
  gemm.alignment_bytes = 16;
  gemm.epilogue = one.epilogue;
  const std::vector<double> product = plain_product(gemm, a, b);
  const auto algorithms = products.algorithms(gemm);
  for (const TroupeCudaAlgorithm& algorithm : algorithms) {
    StoredMatrix c(one.types.c, s.m, s.n, s.n + one.gap),
        input(one.types.c, s.m, s.n, s.n + one.gap);
    if (gradient) input.fill(4);
    Workspace workspace(algorithm.workspace_bytes);
    const int code = products.table.gemm_fused(
        &products.stream, &gemm, &algorithm, a.data(), b.data(), adds_bias ? bias.data() : nullptr,
        gelu || gradient ? input.data() : nullptr, c.data(), workspace.data(), workspace.size());
    REQUIRE_MESSAGE(code == TROUPE_CUDA_OK, train::cuda::last_failure());
    std::int64_t wrong = 0, wrong_input = 0;
    for (std::int64_t i = 0; i < s.m; ++i)
      for (std::int64_t j = 0; j < s.n; ++j) {
        const double sum = product[static_cast<std::size_t>(i * s.n + j)];
        const double biased = sum + bias.get(0, j);
        double expected = biased;
        if (gelu) expected = tanh_gelu(biased);
        if (gradient) expected = sum * gelu_slope_at(kept.get(i, j));
        const double error = std::abs(c.get(i, j) - expected);
        wrong += gelu || gradient ? error > stored_error(one.types.c, expected) : error != 0;
        if (gelu) wrong_input += input.get(i, j) != as_stored(one.types.c, biased);
        if (gradient) wrong_input += input.get(i, j) != kept.get(i, j);
      }
    CHECK(wrong == 0);
    CHECK(wrong_input == 0);
    CHECK(c.gaps_are_untouched());
    CHECK(input.gaps_are_untouched());
  }
  return static_cast<int>(algorithms.size());
}

TEST_CASE("bias, GELU and GELU's gradient follow in the product, by every type and stride") {
  Products products;
  for (const ProductTypes& types : kWide)
    for (const int epilogue : {TROUPE_CUDA_EPILOGUE_BIAS, TROUPE_CUDA_EPILOGUE_BIAS_GELU,
                               TROUPE_CUDA_EPILOGUE_GELU_GRADIENT})
      for (const Sizes& s : {Sizes{5, 24, 40}, Sizes{1, 8, 16}, Sizes{24, 40, 8}})
        for (const bool transpose_b : {false, true})
          for (const std::int64_t gap : {0, 8}) {
            CAPTURE(std::string(types.name));
            CAPTURE(epilogue);
            CAPTURE(s.m);
            CHECK(check_epilogue(products, {epilogue, types, s, transpose_b, gap}) >= 1);
          }
}

TEST_CASE(
    "what no epilogue can be is refused by name, and what the library has none for has none") {
  Products products;
  StoredMatrix a(TROUPE_CUDA_BF16, 4, 16, 16), b(TROUPE_CUDA_BF16, 16, 16, 16),
      c(TROUPE_CUDA_BF16, 4, 16, 16), bias(TROUPE_CUDA_BF16, 1, 16, 16), odd(c.type, 4, 16, 20);
  TroupeCudaGemm gemm = gemm_of(a, false, b, true, c, TROUPE_CUDA_COMPUTE_BF16);
  gemm.alignment_bytes = 16;
  gemm.epilogue = TROUPE_CUDA_EPILOGUE_BIAS_GELU;
  const TroupeCudaAlgorithm algorithm = products.algorithms(gemm, 0).at(0);
  const auto refused = [&](auto&& change, const std::string& why) {
    TroupeCudaGemm changed = gemm;
    change(changed);
    std::int32_t count = 0;
    TroupeCudaAlgorithm none{};
    const int code =
        products.table.gemm_algorithms(&products.context, &changed, 0, 1, &none, &count);
    return code == TROUPE_CUDA_INVALID &&
           std::string(train::cuda::last_failure()).find(why) != std::string::npos;
  };
  CHECK(refused([](TroupeCudaGemm& g) { g.accumulate = 1; }, "not added to what is there"));
  CHECK(refused([](TroupeCudaGemm& g) { g.alignment_bytes = 2; }, "16 bytes' alignment"));
  CHECK(refused([](TroupeCudaGemm& g) { g.epilogue = 7; }, "unknown epilogue"));
  CHECK(refused(
      [](TroupeCudaGemm& g) {
        g.arithmetic = TROUPE_CUDA_COMPUTE_FP8;
        g.a_type = g.b_type = TROUPE_CUDA_E4M3;
      },
      "8 bits have no epilogue"));
  // GELU's input by rows of 20 elements.
  TroupeCudaGemm no_eights = gemm;
  no_eights.c_stride = odd.stride;
  CHECK(products.algorithms(no_eights).empty());

  const auto run = [&](const void* vector, void* input) {
    return products.table.gemm_fused(&products.stream, &gemm, &algorithm, a.data(), b.data(),
                                     vector, input, c.data(), nullptr, 0);
  };
  StoredMatrix input(TROUPE_CUDA_BF16, 4, 16, 16);
  CHECK(run(bias.data(), input.data()) == TROUPE_CUDA_OK);
  CHECK(run(nullptr, input.data()) == TROUPE_CUDA_INVALID);
  CHECK(run(bias.data(), nullptr) == TROUPE_CUDA_INVALID);
  CHECK(products.table.gemm(&products.stream, &gemm, &algorithm, a.data(), b.data(), c.data(),
                            nullptr, 0) == TROUPE_CUDA_INVALID);
  // An algorithm that was named for a bias and GELU's input at 16 bytes serves no others.
  CHECK(run(static_cast<std::uint16_t*>(bias.data()) + 1, input.data()) == TROUPE_CUDA_INVALID);
  CHECK(run(bias.data(), static_cast<std::uint16_t*>(input.data()) + 4) == TROUPE_CUDA_INVALID);
  CHECK(std::string(train::cuda::last_failure()).find("lies where the algorithm cannot") !=
        std::string::npos);
}

}  // namespace
}  // namespace troupe::tests

// Products with a matrix that is kept in 4 or 8 bits.

#include <array>
#include <cstring>

#include "tests/train/cpu/operator_fixture.h"
#include "train/tensor/convert.h"
#include "train/tensor/quantized.h"

namespace troupe::train::tests {
namespace {

struct QuantizedCase {
  std::int64_t m, n, k;
  bool transpose_b, accumulate;
};

// C of a product with a quantised B, or with its values.
Vector product_of(const QuantizedCase& s, int threads, Arithmetic arithmetic,
                  const QuantizedMatrix& quantized, const Vector& values) {
  OperatorFixture f(threads);
  const Vector a = random_vector(s.m * s.k, 1);
  Vector c = random_vector(s.m * s.n, 3);
  Gemm gemm{.m = s.m,
            .n = s.n,
            .k = s.k,
            .a = a.data(),
            .a_stride = s.k,
            .transpose_b = s.transpose_b,
            .c = c.data(),
            .c_stride = s.n,
            .accumulate = s.accumulate,
            .arithmetic = arithmetic};
  std::vector<std::uint16_t> narrow(values.size());
  gemm.b_stride = s.transpose_b ? s.k : s.n;
  if (quantized) {
    gemm.b_quantized = quantized;
  } else if (arithmetic == Arithmetic::kBf16) {
    bf16_from_float(values.data(), narrow.data(), std::ssize(values));
    gemm.b = narrow.data(), gemm.b_type = DType::kBF16;
  } else {
    gemm.b = values.data();
  }
  f.operators->gemm(gemm);
  return c;
}

TEST_CASE("a product with a quantised matrix is that with its values") {
  // The last two do not fit into what is dequantised at once.
  for (const QuantizedCase& s :
       {QuantizedCase{1, 33, 50, true, false}, QuantizedCase{3, 64, 128, false, true},
        QuantizedCase{40, 100, 96, true, true}, QuantizedCase{50, 96, 70, false, false},
        QuantizedCase{17, 700, 2048, true, false}, QuantizedCase{17, 2048, 700, false, true}}) {
    CAPTURE(s.m);
    CAPTURE(s.transpose_b);
    const Vector b = random_vector(s.n * s.k, 2);
    const std::int64_t width = s.transpose_b ? s.k : s.n, rows = std::ssize(b) / width;
    // Some in 8 bits.
    const Quantization quantization =
        s.m % 2 == 0 ? Quantization{WeightCode::kInt8} : Quantization{WeightCode::kNf4, true};
    std::vector<std::byte> bytes(QuantizedParts(quantization, rows, width).bytes);
    quantize(b, width, quantization, bytes);
    const QuantizedMatrix matrix{quantization, bytes.data(), rows, width};
    Vector values(b.size());
    dequantize(matrix, 0, std::span(values));
    const auto product = [&](int threads, Arithmetic arithmetic, bool quantized) {
      return product_of(s, threads, arithmetic, quantized ? matrix : QuantizedMatrix(), values);
    };
    // Products of few rows are cut by their shape (gemm.h), others have the same bits.
    const Vector expected = product(1, Arithmetic::kFp32, false);
    const Vector exact = product(1, Arithmetic::kFp32, true);
    if (s.m >= 16) CHECK(exact == expected);
    for (std::size_t i = 0; i < expected.size(); ++i)
      CHECK(exact[i] == doctest::Approx(expected[i]).epsilon(1e-5));
    CHECK(product(3, Arithmetic::kFp32, true) == exact);
    const Vector rounded = product(1, Arithmetic::kBf16, true);
    const Vector plain = product(1, Arithmetic::kBf16, false);
    for (std::size_t i = 0; i < plain.size(); ++i)
      CHECK(rounded[i] == doctest::Approx(plain[i]).epsilon(1e-4));
    CHECK(product(3, Arithmetic::kBf16, true) == rounded);
  }
}

}  // namespace
}  // namespace troupe::train::tests

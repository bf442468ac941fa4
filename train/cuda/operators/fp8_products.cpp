#include "train/cuda/operators/fp8_products.h"

#include <fmt/format.h>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

// What the units take at once of a row.
constexpr std::int64_t kRowElements = 16;

std::int64_t whole_rows(std::int64_t elements) {
  return (elements + kRowElements - 1) / kRowElements * kRowElements;
}

std::int32_t type_of_operand(DType type) {
  return type == DType::kBF16 ? TROUPE_CUDA_BF16 : TROUPE_CUDA_F32;
}

// An operand of `rows` rows of k, given as that, or as `rows` columns.
TroupeCudaQuantize operand(DType type, std::int64_t stride, std::int64_t rows, std::int64_t k,
                           bool given_in_columns, Narrow narrow) {
  return {.rows = given_in_columns ? k : rows,
          .columns = given_in_columns ? rows : k,
          .stride = stride,
          .type = type_of_operand(type),
          .format = narrow == Narrow::kGradient ? TROUPE_CUDA_E5M2 : TROUPE_CUDA_E4M3,
          .transpose = given_in_columns,
          .out_stride = whole_rows(k)};
}

}  // namespace

Status check_fp8(const CudaDevice& device) {
  const int major = device.info().compute_major, minor = device.info().compute_minor;
  if (major > 8 || (major == 8 && minor >= 9)) return {};
  return error(Code::kUnsupported,
               "{}: fp8: true needs a GPU of compute capability 8.9 or later (Ada, Hopper, "
               "Blackwell), and this one has {}.{}; use bf16: true without fp8",
               device.name(), major, minor);
}

std::optional<Fp8Product> plan_fp8_product(const Gemm& g, std::string& why_not) {
  TROUPE_CHECK(g.arithmetic == Arithmetic::kBf16 && g.narrow_a != Narrow::kNot &&
               g.narrow_b != Narrow::kNot);
  TROUPE_CHECK(g.narrow_a != Narrow::kGradient || g.narrow_b != Narrow::kGradient);
  if (g.n % kRowElements != 0) {
    why_not = fmt::format("{} columns are no multiple of {}", g.n, kRowElements);
    return std::nullopt;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(g.c.data);
  if (address % 16 != 0 || g.c_stride * g.c.element_bytes() % 16 != 0) {
    why_not = "rows of the result do not begin at multiples of 16 bytes";
    return std::nullopt;
  }
  Fp8Product product{.gemm = {},
                     .a = operand(g.a_type, g.a_stride, g.m, g.k, g.transpose_a, g.narrow_a),
                     .b = operand(g.b_type, g.b_stride, g.n, g.k, !g.transpose_b, g.narrow_b)};
  const std::int64_t k = whole_rows(g.k);
  product.a_bytes = g.m * k;
  product.b_bytes = g.n * k;
  product.gemm = {.m = g.m,
                  .n = g.n,
                  .k = k,
                  .a_stride = k,
                  .b_stride = k,
                  .c_stride = g.c_stride,
                  .a_type = product.a.format,
                  .b_type = product.b.format,
                  .c_type = type_of_operand(g.c.type),
                  .transpose_a = 0,
                  .transpose_b = 1,
                  .accumulate = g.accumulate,
                  .arithmetic = TROUPE_CUDA_COMPUTE_FP8,
                  .alignment_bytes = 16};
  return product;
}

}  // namespace troupe::train

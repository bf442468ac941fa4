// The product itself, element by element.

#include <vector>

#include "tests/train/cuda/library/cublaslt/numbers.h"
#include "tests/train/cuda/library/cublaslt/objects.h"

namespace troupe::tests::blas_lt {
namespace {

// op(matrix) row by row, or column by column: `lines` of k values, as the units take them.
std::vector<float> operand(const void* matrix, const Layout& layout, bool lines_are_columns,
                           std::int64_t lines, std::int64_t k, bool tf32) {
  std::vector<float> values(static_cast<std::size_t>(lines * k));
  for (std::int64_t line = 0; line < lines; ++line) {
    for (std::int64_t i = 0; i < k; ++i) {
      const std::int64_t at = lines_are_columns ? line * layout.ld + i : i * layout.ld + line;
      const float value = read(matrix, layout.type, at);
      values[static_cast<std::size_t>(line * k + i)] = tf32 ? rounded_to_tf32(value) : value;
    }
  }
  return values;
}

float scale_at(const void* pointer) { return pointer ? read(pointer, CUDA_R_32F, 0) : 1.0f; }

}  // namespace

void multiply(const Problem& p, const Algorithm& algorithm, float alpha, const void* a,
              const void* b, float beta, const void* c, void* d) {
  const Product& o = p.product;
  const bool ta = o.transpose_a == CUBLAS_OP_T, tb = o.transpose_b == CUBLAS_OP_T;
  const bool tf32 = o.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const std::int64_t k = ta ? p.a.rows : p.a.columns;
  // Rows of op(A), columns of op(B): where A is turned round its columns are those rows.
  const std::vector<float> left = operand(a, p.a, ta, p.d.rows, k, tf32),
                           right = operand(b, p.b, !tb, p.d.columns, k, tf32);
  const float scale = alpha * scale_at(o.a_scale) * scale_at(o.b_scale);
  const bool fp8 = type_bytes(p.a.type) == 1;
  const int bias_type = fp8 ? int{CUDA_R_16BF} : int{p.d.type};
  // Whoever gets these did not ask for fp32 sums in order: the result says so.
  const bool wrong_sums = (algorithm.reduction & (CUBLASLT_REDUCTION_SCHEME_INPLACE |
                                                  CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) != 0;
  for (std::int64_t column = 0; column < p.d.columns; ++column) {
    for (std::int64_t row = 0; row < p.d.rows; ++row) {
      const float *x = left.data() + row * k, *y = right.data() + column * k;
      float sum = 0;
      for (std::int64_t i = 0; i < k; ++i) sum += x[i] * y[i];
      float value = scale * sum;
      // C is not read where it counts for nothing.
      if (beta != 0) value += beta * read(c, p.c.type, column * p.c.ld + row);
      if (wrong_sums) value += 1;
      if (o.adds_bias()) value += read(o.bias, bias_type, row);
      const std::int64_t aux_at = column * o.aux_ld + row;
      if (o.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        write(o.aux, p.d.type, aux_at, value);
        value = gelu(value);
      } else if (o.epilogue == CUBLASLT_EPILOGUE_DGELU) {
        value *= gelu_slope(read(o.aux, p.d.type, aux_at));
      }
      write(d, p.d.type, column * p.d.ld + row, value);
    }
  }
}

}  // namespace troupe::tests::blas_lt

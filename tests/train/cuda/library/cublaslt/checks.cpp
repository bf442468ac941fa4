// What cublasLtMatmul refuses, from its documentation and cublasLt.h's comments.

#include <bit>

#include "tests/train/cuda/library/cublaslt/numbers.h"
#include "tests/train/cuda/library/cublaslt/objects.h"

namespace troupe::tests::blas_lt {
namespace {

bool is_fp8(int type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

cublasStatus_t check_sizes(const Problem& p) {
  for (const Layout* layout : {&p.a, &p.b, &p.c, &p.d}) {
    if (layout->rows <= 0 || layout->columns <= 0)
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "a matrix without rows or columns");
    if (layout->ld < layout->rows)
      return refuse(CUBLAS_STATUS_INVALID_VALUE,
                    "a leading dimension that is less than the rows of its matrix");
  }
  const bool ta = p.product.transpose_a == CUBLAS_OP_T, tb = p.product.transpose_b == CUBLAS_OP_T;
  const std::int64_t m = ta ? p.a.columns : p.a.rows, k = ta ? p.a.rows : p.a.columns;
  const std::int64_t n = tb ? p.b.rows : p.b.columns, k_of_b = tb ? p.b.columns : p.b.rows;
  if (k != k_of_b) return refuse(CUBLAS_STATUS_INVALID_VALUE, "op(A) and op(B) differ in k");
  if (p.d.rows != m || p.d.columns != n)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "D is not of op(A)'s rows and op(B)'s columns");
  if (p.c.rows != m || p.c.columns != n)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "C is not of D's rows and columns");
  return CUBLAS_STATUS_SUCCESS;
}

// The table of types under cublasLtMatmul, of which the stand-in has these rows.
cublasStatus_t check_types(const Problem& p) {
  const int a = p.a.type, b = p.b.type, c = p.c.type, d = p.d.type;
  if (p.product.scale_type != CUDA_R_32F)
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "sums of fp32 are scaled in fp32");
  if (c != d || (d != CUDA_R_32F && d != CUDA_R_16BF))
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "C and D are both fp32, or both bf16");
  if (p.product.compute == CUBLAS_COMPUTE_32F_FAST_TF32) {
    if (a != CUDA_R_32F || b != CUDA_R_32F || d != CUDA_R_32F)
      return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "TF32 products are of fp32 matrices");
    return CUBLAS_STATUS_SUCCESS;
  }
  if (p.product.compute != CUBLAS_COMPUTE_32F)
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a compute type that the stand-in has not");
  if (is_fp8(a) && is_fp8(b)) {
    if (a == CUDA_R_8F_E5M2 && b == CUDA_R_8F_E5M2)
      return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "A and B are both E5M2");
    return CUBLAS_STATUS_SUCCESS;
  }
  if (a == CUDA_R_16BF && b == CUDA_R_16BF) return CUBLAS_STATUS_SUCCESS;
  if (a == CUDA_R_32F && b == CUDA_R_32F && d == CUDA_R_32F) return CUBLAS_STATUS_SUCCESS;
  return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "no row of the table has these types");
}

// "To use FP8 kernels …": TN on compute capability 8.9 and 9.0, and everything at 16 bytes.
cublasStatus_t check_fp8(const Problem& p) {
  if (!is_fp8(p.a.type)) {
    if (p.product.a_scale || p.product.b_scale)
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "scales of matrices that are not of 8 bits");
    return CUBLAS_STATUS_SUCCESS;
  }
  if (p.product.transpose_a != CUBLAS_OP_T || p.product.transpose_b != CUBLAS_OP_N)
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "products of 8 bits are of Aᵀ and B");
  const auto sixteen = [](const Layout& layout) {
    const auto bytes = static_cast<std::int64_t>(type_bytes(layout.type));
    return layout.rows * bytes % 16 == 0 && layout.ld * bytes % 16 == 0;
  };
  if (!sixteen(p.a) || !sixteen(p.b) || !sixteen(p.c) || !sixteen(p.d))
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED,
                  "rows or leading dimensions of 8 bits' products that are not of 16 bytes");
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_epilogue(const Problem& p) {
  const Product& o = p.product;
  switch (o.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
      break;
    default:
      return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an epilogue that the stand-in has not");
  }
  if (o.adds_bias()) {
    // Bias is of D's type, but for 8 bits to fp32: bf16.
    const int wanted = is_fp8(p.a.type) ? int{CUDA_R_16BF} : int{p.d.type};
    if (o.bias_type != -1 && o.bias_type != wanted)
      return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a bias of another type than the table has");
    if (!o.bias) return refuse(CUBLAS_STATUS_INVALID_VALUE, "an epilogue of a bias without one");
  }
  if (o.has_aux()) {
    if (o.aux_type != -1 && o.aux_type != p.d.type)
      return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "GELU's input is of D's type");
    if (!o.aux) return refuse(CUBLAS_STATUS_INVALID_VALUE, "an epilogue of GELU without its input");
    if (o.aux_ld % 8 != 0 || o.aux_ld < p.d.rows)
      return refuse(CUBLAS_STATUS_INVALID_VALUE,
                    "the leading dimension of GELU's input is no multiple of 8, or less than D's "
                    "rows");
  }
  return CUBLAS_STATUS_SUCCESS;
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  return (std::rotl(hash, 23) ^ value) * 0x9e3779b97f4a7c15u;
}

bool at(const void* address, std::uint32_t alignment) {
  return alignment == 0 || reinterpret_cast<std::uintptr_t>(address) % alignment == 0;
}

}  // namespace

std::uint64_t fingerprint(const Problem& p) {
  std::uint64_t hash = 1;
  const Product& o = p.product;
  for (const std::int64_t value :
       {std::int64_t{o.compute}, std::int64_t{o.transpose_a}, std::int64_t{o.transpose_b},
        std::int64_t{o.epilogue}, o.aux_ld, std::int64_t{o.fast_accumulation}})
    hash = mixed(hash, static_cast<std::uint64_t>(value));
  for (const Layout* layout : {&p.a, &p.b, &p.c, &p.d})
    for (const std::int64_t value :
         {std::int64_t{layout->type}, layout->rows, layout->columns, layout->ld})
      hash = mixed(hash, static_cast<std::uint64_t>(value));
  return hash;
}

std::uint64_t checksum_of(const Algorithm& algorithm) {
  std::uint64_t hash = 2;
  for (const std::uint64_t value :
       {algorithm.problem, algorithm.workspace_bytes, std::uint64_t{algorithm.alignment},
        std::uint64_t{algorithm.reduction}, std::uint64_t{algorithm.bias_alignment},
        std::uint64_t{algorithm.aux_alignment}})
    hash = mixed(hash, value);
  return hash;
}

cublasStatus_t check_problem(const Problem& problem) {
  if (problem.product.pointer_mode != CUBLASLT_POINTER_MODE_HOST)
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "alpha and beta are the host's in the stand-in");
  for (const auto check : {check_sizes, check_types, check_fp8, check_epilogue})
    if (const cublasStatus_t status = check(problem); status != CUBLAS_STATUS_SUCCESS)
      return status;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_algorithm(const Problem& problem, const Algorithm& algorithm, const void* a,
                               const void* b, const void* c, const void* d, const void* workspace,
                               std::uint64_t workspace_bytes) {
  if (algorithm.checksum != checksum_of(algorithm) || algorithm.problem != fingerprint(problem))
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "an algorithm that was named for another product");
  if (workspace_bytes < algorithm.workspace_bytes)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "less workspace than the algorithm needs");
  if (algorithm.workspace_bytes > 0 && (!workspace || !at(workspace, 256)))
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "a workspace that is not at 256 bytes");
  for (const void* matrix : {a, b, c, d})
    if (!at(matrix, algorithm.alignment))
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "a matrix that lies where the algorithm cannot");
  if ((problem.product.adds_bias() && !at(problem.product.bias, algorithm.bias_alignment)) ||
      (problem.product.has_aux() && !at(problem.product.aux, algorithm.aux_alignment)))
    return refuse(CUBLAS_STATUS_INVALID_VALUE,
                  "a bias or GELU's input that lies where the algorithm cannot");
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace troupe::tests::blas_lt

#pragma once
// What the stand-in of libcublasLt keeps behind the library's handles.

#include <cublasLt.h>

#include <cstdint>
#include <string>

namespace troupe::tests::blas_lt {

// What each handle begins with: who gives another one, or one that is gone, is found out.
enum class Kind : std::uint64_t {
  kGone = 0,
  kLibrary = 0x4c69627261727921,
  kProduct = 0x50726f6475637421,
  kLayout = 0x4c61796f75742121,
  kPreference = 0x5072656665722121,
};

struct Library {
  Kind kind = Kind::kLibrary;
};

// Defaults are those that cublasLt.h names.
struct Product {
  Kind kind = Kind::kProduct;
  std::int32_t compute = CUBLAS_COMPUTE_32F;
  std::int32_t scale_type = CUDA_R_32F;
  std::int32_t pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  std::int32_t bias_type = -1;
  void* aux = nullptr;
  std::int64_t aux_ld = 0;
  std::int32_t aux_type = -1;
  const void* a_scale = nullptr;
  const void* b_scale = nullptr;
  std::int8_t fast_accumulation = 0;

  bool adds_bias() const {
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
           epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
  bool has_aux() const {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_DGELU ||
           epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
};

// Column by column, `ld` elements from one to the next.
struct Layout {
  Kind kind = Kind::kLayout;
  std::int32_t type = CUDA_R_32F;
  std::int64_t rows = 0, columns = 0, ld = 0;
  bool operator==(const Layout&) const = default;
};

struct Preference {
  Kind kind = Kind::kPreference;
  std::uint64_t workspace_bytes = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t a_alignment = 256, b_alignment = 256, c_alignment = 256, d_alignment = 256;
};

struct Problem {
  const Product& product;
  const Layout &a, &b, &c, &d;
};

// What cublasLtMatmulAlgo_t holds.
struct Algorithm {
  std::uint64_t problem;  // fingerprint of what the heuristic was asked
  std::uint64_t workspace_bytes;
  std::uint32_t alignment;  // of all matrices, in bytes
  std::uint32_t reduction;  // cublasLtReductionScheme_t
  std::uint32_t bias_alignment, aux_alignment;
  std::uint64_t checksum;  // over what stands before it
  std::uint64_t unused[3];
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

std::uint64_t fingerprint(const Problem& problem);
std::uint64_t checksum_of(const Algorithm& algorithm);

// SUCCESS, or keeps why not for cublasLtGetStatusString of this thread.
cublasStatus_t refuse(cublasStatus_t status, std::string why);
// Of sizes, types and settings, as cublasLtMatmul's documentation has them.
cublasStatus_t check_problem(const Problem& problem);
// Of addresses.
cublasStatus_t check_algorithm(const Problem& problem, const Algorithm& algorithm, const void* a,
                               const void* b, const void* c, const void* d, const void* workspace,
                               std::uint64_t workspace_bytes);
// D = epilogue(scales·alpha·op(A)·op(B) + beta·C).
void multiply(const Problem& problem, const Algorithm& algorithm, float alpha, const void* a,
              const void* b, float beta, const void* c, void* d);

}  // namespace troupe::tests::blas_lt

// Products by cuBLASLt. It counts in columns: a row-major C = op(A)·op(B) is its Cᵀ =
// op(B)ᵀ·op(A)ᵀ, so that B is its first operand and A its second, and a row-major (rows, columns)
// matrix is a (columns, rows) one of the same distance.
//
// Sums are fp32. Parts of a sum that was split over k are added in fp32 in a step of their own, in
// order: algorithms that add into the output, or keep parts in its type, are not taken. So an
// algorithm gives the same bits every time. Products of 8 bits are added without the units' fast
// accumulation, which keeps 14 bits.
//
// What follows a product is cuBLASLt's epilogue: its bias is as long as Cᵀ has rows, which is n,
// and of C's type, and GELU's input lies as C does.

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "train/cuda/library/dynamic_library.h"
#include "train/cuda/library/objects.h"
#include "train/cuda/library/vendor_versions.h"

namespace troupe::train::cuda {
namespace {

struct CublasLt {
  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtDestroy) destroy = nullptr;
  decltype(&::cublasLtGetVersion) version = nullptr;
  decltype(&::cublasLtGetStatusName) status_name = nullptr;
  decltype(&::cublasLtGetStatusString) status_string = nullptr;
  decltype(&::cublasLtMatmul) matmul = nullptr;
  decltype(&::cublasLtMatmulDescCreate) description_create = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) description_destroy = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) description_set = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&::cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
};

#define TROUPE_TEXT_OF(x) #x
#define TROUPE_TEXT(x) TROUPE_TEXT_OF(x)
constexpr const char* kName = "libcublasLt.so." TROUPE_TEXT(CUBLAS_VER_MAJOR);

// Loaded at the first call.
struct Loaded {
  Loaded() : library({kName}) {
    library.find("cublasLtCreate", functions.create);
    library.find("cublasLtDestroy", functions.destroy);
    library.find("cublasLtGetVersion", functions.version);
    library.find("cublasLtGetStatusName", functions.status_name);
    library.find("cublasLtGetStatusString", functions.status_string);
    library.find("cublasLtMatmul", functions.matmul);
    library.find("cublasLtMatmulDescCreate", functions.description_create);
    library.find("cublasLtMatmulDescDestroy", functions.description_destroy);
    library.find("cublasLtMatmulDescSetAttribute", functions.description_set);
    library.find("cublasLtMatrixLayoutCreate", functions.layout_create);
    library.find("cublasLtMatrixLayoutDestroy", functions.layout_destroy);
    library.find("cublasLtMatmulPreferenceCreate", functions.preference_create);
    library.find("cublasLtMatmulPreferenceDestroy", functions.preference_destroy);
    library.find("cublasLtMatmulPreferenceSetAttribute", functions.preference_set);
    library.find("cublasLtMatmulAlgoGetHeuristic", functions.heuristic);
  }
  DynamicLibrary library;
  CublasLt functions;
};
const Loaded& loaded_cublas() {
  static const Loaded only;
  return only;
}

TroupeCudaCode code_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return TROUPE_CUDA_OK;
    case CUBLAS_STATUS_ALLOC_FAILED:
      return TROUPE_CUDA_OUT_OF_MEMORY;
    case CUBLAS_STATUS_INVALID_VALUE:
      return TROUPE_CUDA_INVALID;
    case CUBLAS_STATUS_ARCH_MISMATCH:
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return TROUPE_CUDA_UNSUPPORTED;
    default:
      return TROUPE_CUDA_FAILED;
  }
}

const char* type_name(int type) {
  switch (type) {
    case TROUPE_CUDA_F32:
      return "f32";
    case TROUPE_CUDA_BF16:
      return "bf16";
    case TROUPE_CUDA_E4M3:
      return "e4m3";
    case TROUPE_CUDA_E5M2:
      return "e5m2";
    default:
      return "?";
  }
}

const char* epilogue_text(int epilogue) {
  switch (epilogue) {
    case TROUPE_CUDA_EPILOGUE_NONE:
      return "";
    case TROUPE_CUDA_EPILOGUE_BIAS:
      return ", with a bias";
    case TROUPE_CUDA_EPILOGUE_BIAS_GELU:
      return ", with a bias and GELU";
    case TROUPE_CUDA_EPILOGUE_GELU_GRADIENT:
      return ", with GELU's gradient";
    default:
      return ", with an unknown epilogue";
  }
}

std::string text_of(const TroupeCudaGemm& g) {
  return fmt::format("product of {} x {} x {} ({}{} x {}{} -> {}{}{})", g.m, g.n, g.k,
                     type_name(g.a_type), g.transpose_a ? "ᵀ" : "", type_name(g.b_type),
                     g.transpose_b ? "ᵀ" : "", type_name(g.c_type), g.accumulate ? ", added" : "",
                     epilogue_text(g.epilogue));
}

int failed_cublas(const CublasLt& lt, cublasStatus_t status, const std::string& what) {
  // The device knows better where it is what failed.
  const cudaError_t error = device_error();
  if (error != cudaSuccess) return check(error, what + ": " + lt.status_name(status));
  return fail(code_of(status),
              fmt::format("{}: {} ({})", what, lt.status_name(status), lt.status_string(status)));
}

// The text is made where it is needed: a step has hundreds of products, each of several calls.
int check_cublas(const CublasLt& lt, cublasStatus_t status, const char* what,
                 const TroupeCudaGemm& gemm) {
  if (status == CUBLAS_STATUS_SUCCESS) return TROUPE_CUDA_OK;
  return failed_cublas(lt, status, what + text_of(gemm));
}

cudaDataType_t data_type(int type) {
  switch (type) {
    case TROUPE_CUDA_BF16:
      return CUDA_R_16BF;
    case TROUPE_CUDA_E4M3:
      return CUDA_R_8F_E4M3;
    case TROUPE_CUDA_E5M2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

std::int32_t element_bytes(int type) {
  switch (type) {
    case TROUPE_CUDA_BF16:
      return 2;
    case TROUPE_CUDA_E4M3:
    case TROUPE_CUDA_E5M2:
      return 1;
    default:
      return 4;
  }
}

// Of what is particular to products of 8 bits: null, or why not.
const char* why_not_fp8(const TroupeCudaGemm& g) {
  const auto narrow = [](int type) { return type == TROUPE_CUDA_E4M3 || type == TROUPE_CUDA_E5M2; };
  if (!narrow(g.a_type) || !narrow(g.b_type)) return "fp8 arithmetic takes fp8 operands";
  if (g.a_type == TROUPE_CUDA_E5M2 && g.b_type == TROUPE_CUDA_E5M2)
    return "one of the operands is E4M3";
  if (g.transpose_a || !g.transpose_b) return "operands in rows of k are wanted";
  if (g.k % 16 != 0 || g.n % 16 != 0 || g.a_stride % 16 != 0 || g.b_stride % 16 != 0 ||
      g.alignment_bytes % 16 != 0)
    return "k, n, distances of operands' rows and alignments are multiples of 16";
  return nullptr;
}

bool adds_bias(const TroupeCudaGemm& g) {
  return g.epilogue == TROUPE_CUDA_EPILOGUE_BIAS || g.epilogue == TROUPE_CUDA_EPILOGUE_BIAS_GELU;
}
bool has_gelu(const TroupeCudaGemm& g) {
  return g.epilogue == TROUPE_CUDA_EPILOGUE_BIAS_GELU ||
         g.epilogue == TROUPE_CUDA_EPILOGUE_GELU_GRADIENT;
}

// Of what is particular to epilogues: null, or why not.
const char* why_not_epilogue(const TroupeCudaGemm& g) {
  if (g.epilogue == TROUPE_CUDA_EPILOGUE_NONE) return nullptr;
  if (!adds_bias(g) && !has_gelu(g)) return "unknown epilogue";
  if (g.accumulate) return "a product with an epilogue is not added to what is there";
  if (g.arithmetic == TROUPE_CUDA_COMPUTE_FP8) return "products of 8 bits have no epilogue";
  if (g.alignment_bytes % 16 != 0) return "a product with an epilogue is of 16 bytes' alignment";
  return nullptr;
}

int check_gemm(const TroupeCudaGemm& g) {
  const auto invalid = [&](const char* why) {
    return fail(TROUPE_CUDA_INVALID, text_of(g) + ": " + why);
  };
  if (g.m <= 0 || g.n <= 0 || g.k <= 0) return invalid("sizes must be positive");
  if (g.a_stride < (g.transpose_a ? g.m : g.k) || g.b_stride < (g.transpose_b ? g.k : g.n) ||
      g.c_stride < g.n)
    return invalid("rows longer than their distance");
  if (g.c_type != TROUPE_CUDA_F32 && g.c_type != TROUPE_CUDA_BF16)
    return invalid("the result is F32 or BF16");
  if (const char* why_not = why_not_epilogue(g)) return invalid(why_not);
  if (g.arithmetic == TROUPE_CUDA_COMPUTE_FP8) {
    const char* why_not = why_not_fp8(g);
    return why_not ? invalid(why_not) : TROUPE_CUDA_OK;
  }
  const bool bf16 = g.arithmetic == TROUPE_CUDA_COMPUTE_BF16;
  if (!bf16 && g.arithmetic != TROUPE_CUDA_COMPUTE_F32 && g.arithmetic != TROUPE_CUDA_COMPUTE_TF32)
    return invalid("unknown arithmetic");
  const int operand = bf16 ? TROUPE_CUDA_BF16 : TROUPE_CUDA_F32;
  if (g.a_type != operand || g.b_type != operand)
    return invalid(bf16 ? "bf16 arithmetic takes bf16 operands" : "fp32 arithmetic takes fp32");
  return TROUPE_CUDA_OK;
}

// Of the operands of a product of 8 bits.
struct OperandScales {
  const float* a = nullptr;
  const float* b = nullptr;
};

// Of an epilogue; null where it has none.
struct Following {
  const void* bias = nullptr;
  void* gelu_input = nullptr;
};

// A product as cuBLASLt describes it.
class Description {
 public:
  Description(const CublasLt& lt, const TroupeCudaGemm& gemm, const OperandScales& scales,
              const Following& following)
      : lt_(lt), gemm_(gemm), scales_(scales), following_(following) {}
  ~Description() {
    if (product) lt_.description_destroy(product);
    for (cublasLtMatrixLayout_t layout : {first, second, result})
      if (layout) lt_.layout_destroy(layout);
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  int make() {
    const TroupeCudaGemm& g = gemm_;
    const cublasComputeType_t compute = g.arithmetic == TROUPE_CUDA_COMPUTE_TF32
                                            ? CUBLAS_COMPUTE_32F_FAST_TF32
                                            : CUBLAS_COMPUTE_32F;
    TROUPE_CUDA_RETURN_IF_FAILED(
        check_cublas(lt_, lt_.description_create(&product, compute, CUDA_R_32F), "", g));
    TROUPE_CUDA_RETURN_IF_FAILED(set(CUBLASLT_MATMUL_DESC_TRANSA, operation(g.transpose_b)));
    TROUPE_CUDA_RETURN_IF_FAILED(set(CUBLASLT_MATMUL_DESC_TRANSB, operation(g.transpose_a)));
    if (g.arithmetic == TROUPE_CUDA_COMPUTE_FP8) {
      TROUPE_CUDA_RETURN_IF_FAILED(set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{0}));
      TROUPE_CUDA_RETURN_IF_FAILED(set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales_.b));
      TROUPE_CUDA_RETURN_IF_FAILED(set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales_.a));
    }
    TROUPE_CUDA_RETURN_IF_FAILED(make_epilogue());
    TROUPE_CUDA_RETURN_IF_FAILED(
        layout(&first, g.b_type, g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, g.b_stride));
    TROUPE_CUDA_RETURN_IF_FAILED(layout(&second, g.a_type, g.transpose_a ? g.k : g.m,
                                        g.transpose_a ? g.m : g.k, g.a_stride));
    return layout(&result, g.c_type, g.m, g.n, g.c_stride);
  }

  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;

 private:
  static cublasOperation_t operation(int transpose) {
    return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
  }
  // Bias and GELU's input are of the result's type, as the library has it unless it is told.
  int make_epilogue() {
    const TroupeCudaGemm& g = gemm_;
    if (g.epilogue == TROUPE_CUDA_EPILOGUE_NONE) return TROUPE_CUDA_OK;
    const cublasLtEpilogue_t epilogue =
        g.epilogue == TROUPE_CUDA_EPILOGUE_BIAS        ? CUBLASLT_EPILOGUE_BIAS
        : g.epilogue == TROUPE_CUDA_EPILOGUE_BIAS_GELU ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                                                       : CUBLASLT_EPILOGUE_DGELU;
    TROUPE_CUDA_RETURN_IF_FAILED(
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue)));
    if (adds_bias(g))
      TROUPE_CUDA_RETURN_IF_FAILED(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, following_.bias));
    if (!has_gelu(g)) return TROUPE_CUDA_OK;
    TROUPE_CUDA_RETURN_IF_FAILED(
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, following_.gelu_input));
    return set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.c_stride);
  }
  template <class V>
  int set(cublasLtMatmulDescAttributes_t attribute, const V& value) {
    return check_cublas(lt_, lt_.description_set(product, attribute, &value, sizeof value), "",
                        gemm_);
  }
  // Of a row-major (rows, columns) matrix.
  int layout(cublasLtMatrixLayout_t* made, int type, std::int64_t rows, std::int64_t columns,
             std::int64_t stride) {
    return check_cublas(
        lt_,
        lt_.layout_create(made, data_type(type), static_cast<std::uint64_t>(columns),
                          static_cast<std::uint64_t>(rows), stride),
        "", gemm_);
  }

  const CublasLt& lt_;
  const TroupeCudaGemm& gemm_;
  const OperandScales scales_;
  const Following following_;
};

}  // namespace

struct GemmLibrary {
  const CublasLt* functions = nullptr;
  cublasLtHandle_t handle = nullptr;
};

void GemmLibraryDeleter::operator()(GemmLibrary* library) const {
  if (library->handle) library->functions->destroy(library->handle);
  delete library;
}

namespace {

// The context's handle, made at its first product.
int library_of(TroupeCudaContext* context, const GemmLibrary** library) {
  const std::lock_guard lock(context->mutex);
  if (!context->gemm) {
    TROUPE_CUDA_RETURN_IF_FAILED(
        loaded_cublas().library.status(kName, "install NVIDIA's cuBLAS (`tools/setup --cuda`)"));
    auto made = std::unique_ptr<GemmLibrary, GemmLibraryDeleter>(new GemmLibrary());
    made->functions = &loaded_cublas().functions;
    const cublasStatus_t status = made->functions->create(&made->handle);
    if (status != CUBLAS_STATUS_SUCCESS)
      return failed_cublas(*made->functions, status,
                           fmt::format("cublasLtCreate on device {}", context->device));
    context->gemm = std::move(made);
  }
  *library = context->gemm.get();
  return TROUPE_CUDA_OK;
}

class Preference {
 public:
  explicit Preference(const CublasLt& lt) : lt_(lt) {}
  ~Preference() {
    if (made) lt_.preference_destroy(made);
  }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  int make(const TroupeCudaGemm& gemm, std::int64_t workspace_bytes) {
    TROUPE_CUDA_RETURN_IF_FAILED(check_cublas(lt_, lt_.preference_create(&made), "", gemm));
    const auto workspace = static_cast<std::uint64_t>(workspace_bytes);
    const std::uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    TROUPE_CUDA_RETURN_IF_FAILED(set(gemm, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace));
    TROUPE_CUDA_RETURN_IF_FAILED(set(gemm, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions));
    const std::pair<cublasLtMatmulPreferenceAttributes_t, int> matrices[] = {
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, gemm.b_type},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, gemm.a_type},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, gemm.c_type},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, gemm.c_type}};
    for (const auto& [attribute, type] : matrices) {
      // Whatever is said of all, elements lie at multiples of their size: of bf16 operands' least
      // alignment alone, an fp32 result would have no algorithm.
      const auto alignment =
          static_cast<std::uint32_t>(std::max(gemm.alignment_bytes, element_bytes(type)));
      TROUPE_CUDA_RETURN_IF_FAILED(set(gemm, attribute, alignment));
    }
    return TROUPE_CUDA_OK;
  }

  cublasLtMatmulPreference_t made = nullptr;

 private:
  template <class V>
  int set(const TroupeCudaGemm& gemm, cublasLtMatmulPreferenceAttributes_t attribute,
          const V& value) {
    return check_cublas(lt_, lt_.preference_set(made, attribute, &value, sizeof value), "", gemm);
  }

  const CublasLt& lt_;
};

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(TroupeCudaAlgorithm::opaque));

int gemm_algorithms(TroupeCudaContext* context, const TroupeCudaGemm* gemm,
                    std::int64_t workspace_bytes, std::int32_t algorithms_max,
                    TroupeCudaAlgorithm* algorithms, std::int32_t* count) {
  *count = 0;
  TROUPE_CUDA_RETURN_IF_FAILED(enter("gemm_algorithms", context));
  TROUPE_CUDA_RETURN_IF_FAILED(check_gemm(*gemm));
  if (workspace_bytes < 0)
    return fail(TROUPE_CUDA_INVALID, "gemm_algorithms: a workspace of less than nothing");
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive("gemm_algorithms", "algorithms_max", algorithms_max));
  TROUPE_CUDA_RETURN_IF_FAILED(
      need_positive("gemm_algorithms", "alignment_bytes", gemm->alignment_bytes));
  const GemmLibrary* library = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(library_of(context, &library));
  const CublasLt& lt = *library->functions;
  // What the library takes GELU's input by: it has no way where rows lie otherwise.
  if (has_gelu(*gemm) && gemm->c_stride % 8 != 0) return TROUPE_CUDA_OK;
  // Algorithms are wanted that take scales, or a bias and GELU's input of 16 bytes' alignment and
  // no more. Nobody reads them here.
  static constexpr float kSomeScale = 1.0f;
  alignas(32) static std::byte some_memory[32];
  Description description(lt, *gemm, {&kSomeScale, &kSomeScale},
                          {some_memory + 16, some_memory + 16});
  TROUPE_CUDA_RETURN_IF_FAILED(description.make());
  Preference preference(lt);
  TROUPE_CUDA_RETURN_IF_FAILED(preference.make(*gemm, workspace_bytes));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(algorithms_max));
  int found_count = 0;
  const cublasStatus_t status =
      lt.heuristic(library->handle, description.product, description.first, description.second,
                   description.result, description.result, preference.made, algorithms_max,
                   found.data(), &found_count);
  // A product that was found good is not made wrong by what follows it: then the library has no way
  // for that, whichever of the two it answers.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
      (status == CUBLAS_STATUS_INVALID_VALUE && gemm->epilogue != TROUPE_CUDA_EPILOGUE_NONE))
    return TROUPE_CUDA_OK;
  TROUPE_CUDA_RETURN_IF_FAILED(
      check_cublas(lt, status, "cublasLtMatmulAlgoGetHeuristic for a ", *gemm));
  for (int i = 0; i < found_count; ++i) {
    if (found[static_cast<std::size_t>(i)].state != CUBLAS_STATUS_SUCCESS) continue;
    TroupeCudaAlgorithm& to = algorithms[(*count)++];
    std::memcpy(to.opaque, &found[static_cast<std::size_t>(i)].algo, sizeof to.opaque);
    to.workspace_bytes =
        static_cast<std::int64_t>(found[static_cast<std::size_t>(i)].workspaceSize);
  }
  return TROUPE_CUDA_OK;
}

int multiply(const char* what, TroupeCudaStream* stream, const TroupeCudaGemm* gemm,
             const TroupeCudaAlgorithm* algorithm, const void* a, const void* b,
             const OperandScales& scales, const Following& following, void* c, void* workspace,
             std::int64_t workspace_bytes) {
  TROUPE_CUDA_RETURN_IF_FAILED(enter(what, stream));
  TROUPE_CUDA_RETURN_IF_FAILED(check_gemm(*gemm));
  const bool scaled = scales.a && scales.b;
  if (scaled != (gemm->arithmetic == TROUPE_CUDA_COMPUTE_FP8))
    return fail(TROUPE_CUDA_INVALID,
                text_of(*gemm) + ": operands of 8 bits have scales, and no others");
  if (adds_bias(*gemm) != (following.bias != nullptr) ||
      has_gelu(*gemm) != (following.gelu_input != nullptr))
    return fail(TROUPE_CUDA_INVALID,
                text_of(*gemm) + ": a bias and GELU's input are given to epilogues that have them");
  if (workspace_bytes < algorithm->workspace_bytes)
    return fail(TROUPE_CUDA_INVALID,
                fmt::format("{}: its algorithm needs a workspace of {} bytes, {} are given",
                            text_of(*gemm), algorithm->workspace_bytes, workspace_bytes));
  const GemmLibrary* library = nullptr;
  TROUPE_CUDA_RETURN_IF_FAILED(library_of(stream->context, &library));
  const CublasLt& lt = *library->functions;
  Description description(lt, *gemm, scales, following);
  TROUPE_CUDA_RETURN_IF_FAILED(description.make());
  cublasLtMatmulAlgo_t chosen{};
  std::memcpy(&chosen, algorithm->opaque, sizeof chosen);
  const float alpha = 1.0f, beta = gemm->accumulate ? 1.0f : 0.0f;
  return check_cublas(
      lt,
      lt.matmul(library->handle, description.product, &alpha, b, description.first, a,
                description.second, &beta, c, description.result, c, description.result, &chosen,
                workspace, static_cast<std::size_t>(workspace_bytes), stream->stream),
      "cublasLtMatmul, a ", *gemm);
}

int gemm(TroupeCudaStream* stream, const TroupeCudaGemm* gemm, const TroupeCudaAlgorithm* algorithm,
         const void* a, const void* b, void* c, void* workspace, std::int64_t workspace_bytes) {
  return multiply("gemm", stream, gemm, algorithm, a, b, {}, {}, c, workspace, workspace_bytes);
}

int gemm_scaled(TroupeCudaStream* stream, const TroupeCudaGemm* gemm,
                const TroupeCudaAlgorithm* algorithm, const void* a, const float* a_scale,
                const void* b, const float* b_scale, void* c, void* workspace,
                std::int64_t workspace_bytes) {
  return multiply("gemm_scaled", stream, gemm, algorithm, a, b, {a_scale, b_scale}, {}, c,
                  workspace, workspace_bytes);
}

int gemm_fused(TroupeCudaStream* stream, const TroupeCudaGemm* gemm,
               const TroupeCudaAlgorithm* algorithm, const void* a, const void* b, const void* bias,
               void* gelu_input, void* c, void* workspace, std::int64_t workspace_bytes) {
  return multiply("gemm_fused", stream, gemm, algorithm, a, b, {}, {bias, gelu_input}, c, workspace,
                  workspace_bytes);
}

}  // namespace

int cublaslt_version() {
  const CublasLt& lt = loaded_cublas().functions;
  return lt.version ? static_cast<int>(lt.version()) : 0;
}

void fill_gemm(TroupeCudaTable& table) {
  table.gemm_algorithms = gemm_algorithms;
  table.gemm = gemm;
  table.gemm_scaled = gemm_scaled;
  table.gemm_fused = gemm_fused;
}

}  // namespace troupe::train::cuda

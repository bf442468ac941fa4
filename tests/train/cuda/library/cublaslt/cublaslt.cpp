// A stand-in of libcublasLt in memory of the host, by the documented meaning of its functions:
// cublasLt.h's comments and NVIDIA's manual. Written without looking at who calls it, which it is
// there to test. What it refuses, cublasLtGetStatusString explains.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "tests/train/cuda/library/cublaslt/numbers.h"
#include "tests/train/cuda/library/cublaslt/objects.h"

namespace troupe::tests::blas_lt {
namespace {

thread_local std::string last_refusal;
std::atomic<std::int64_t> objects_there = 0;

template <class Object, class Handle>
cublasStatus_t create(Handle* handle, Object object) {
  if (!handle) return refuse(CUBLAS_STATUS_INVALID_VALUE, "nowhere to put a handle");
  *handle = reinterpret_cast<Handle>(new Object(std::move(object)));
  ++objects_there;
  return CUBLAS_STATUS_SUCCESS;
}

template <class Object, class Handle>
Object* object_of(Handle handle, Kind kind) {
  auto* object = reinterpret_cast<Object*>(handle);
  return object && object->kind == kind ? object : nullptr;
}

template <class Object, class Handle>
cublasStatus_t destroy(Handle handle, Kind kind) {
  auto* object = object_of<Object>(handle, kind);
  if (!object) return refuse(CUBLAS_STATUS_INVALID_VALUE, "a handle of something else");
  object->kind = Kind::kGone;
  delete object;
  --objects_there;
  return CUBLAS_STATUS_SUCCESS;
}

// "If buf is NULL or sizeInBytes doesn't match the size of internal storage …".
template <class Value>
cublasStatus_t take(Value& to, const void* value, std::size_t bytes) {
  if (!value || bytes != sizeof to)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of another size");
  std::memcpy(&to, value, sizeof to);
  return CUBLAS_STATUS_SUCCESS;
}

// The greatest power of two, up to 256, that an address is a multiple of.
std::uint32_t alignment_of(const void* address) {
  std::uint32_t alignment = 256;
  while (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) alignment /= 2;
  return alignment;
}

// Ways to compute a product, best first; as a vendor's library has them, the better ones want more.
struct Way {
  std::uint64_t workspace_bytes;
  std::uint32_t alignment;
  std::uint32_t reduction;
};
constexpr std::uint32_t kSmallest = 0;  // the element's
constexpr std::array<Way, 6> kWays = {{{0, 16, CUBLASLT_REDUCTION_SCHEME_INPLACE},
                                       {1 << 20, 16, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE},
                                       {1 << 20, 16, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
                                       {0, 16, CUBLASLT_REDUCTION_SCHEME_NONE},
                                       {4 << 10, kSmallest, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
                                       {0, kSmallest, CUBLASLT_REDUCTION_SCHEME_NONE}}};

std::uint32_t alignment_of(const Way& way, const Layout& layout) {
  const auto element = static_cast<std::uint32_t>(type_bytes(layout.type));
  return std::max(way.alignment, element);
}

// What the algorithm reads at once lies so in every row.
bool serves(const Way& way, const Problem& p, const Preference& preference) {
  if (way.workspace_bytes > preference.workspace_bytes) return false;
  if (way.reduction != CUBLASLT_REDUCTION_SCHEME_NONE &&
      (way.reduction & preference.reductions) == 0)
    return false;
  const std::pair<const Layout*, std::uint32_t> sides[] = {{&p.a, preference.a_alignment},
                                                           {&p.b, preference.b_alignment},
                                                           {&p.c, preference.c_alignment},
                                                           {&p.d, preference.d_alignment}};
  for (const auto& [layout, promised] : sides) {
    const std::uint32_t wanted = alignment_of(way, *layout);
    const auto row = static_cast<std::uint64_t>(layout->ld) * type_bytes(layout->type);
    if (promised < wanted || row % wanted != 0) return false;
  }
  return true;
}

Algorithm algorithm_of(const Way& way, const Problem& p) {
  Algorithm made{};
  made.problem = fingerprint(p);
  made.workspace_bytes = way.workspace_bytes;
  // Of the widest matrix where it is the element's: the others' elements are no wider.
  made.alignment = std::max(alignment_of(way, p.a), std::uint32_t{1});
  made.reduction = way.reduction;
  // "Routines that don't dereference this pointer depend on its value to determine expected
  // pointer alignment."
  made.bias_alignment = p.product.adds_bias() ? std::min(alignment_of(p.product.bias), 16u) : 0;
  made.aux_alignment = p.product.has_aux() ? std::min(alignment_of(p.product.aux), 16u) : 0;
  made.checksum = checksum_of(made);
  return made;
}

}  // namespace

cublasStatus_t refuse(cublasStatus_t status, std::string why) {
  last_refusal = std::move(why);
  return status;
}

}  // namespace troupe::tests::blas_lt

using namespace troupe::tests::blas_lt;

extern "C" {

// Not cuBLASLt's: handles that were not given back.
std::int64_t blas_lt_stand_in_objects() { return objects_there; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return create(handle, Library{}); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return destroy<Library>(handle, Kind::kLibrary);
}
size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    default:
      return "another status";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t) { return last_refusal.c_str(); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                        cudaDataType_t scale_type) {
  Product made;
  made.compute = compute;
  made.scale_type = scale_type;
  return create(product, made);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  return destroy<Product>(product, Kind::kProduct);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  auto* product = object_of<Product>(handle, Kind::kProduct);
  if (!product) return refuse(CUBLAS_STATUS_INVALID_VALUE, "no description of a product");
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return take(product->compute, value, bytes);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return take(product->scale_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return take(product->pointer_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(product->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(product->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(product->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(product->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return take(product->bias_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return take(product->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return take(product->aux_ld, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return take(product->aux_type, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return take(product->a_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return take(product->b_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      return take(product->fast_accumulation, value, bytes);
    default:
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute that the stand-in has not");
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  Layout made;
  made.type = type;
  made.rows = static_cast<std::int64_t>(rows);
  made.columns = static_cast<std::int64_t>(columns);
  made.ld = ld;
  return create(layout, made);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy<Layout>(layout, Kind::kLayout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create(preference, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy<Preference>(preference, Kind::kPreference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  auto* preference = object_of<Preference>(handle, Kind::kPreference);
  if (!preference) return refuse(CUBLAS_STATUS_INVALID_VALUE, "no preference");
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(preference->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(preference->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return take(preference->a_alignment, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return take(preference->b_alignment, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return take(preference->c_alignment, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(preference->d_alignment, value, bytes);
    default:
      return refuse(CUBLAS_STATUS_INVALID_VALUE, "a preference that the stand-in has not");
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wanted, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  if (!object_of<Library>(handle, Kind::kLibrary))
    return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "no handle of the library");
  const auto* description = object_of<Product>(product, Kind::kProduct);
  const auto* preference = object_of<Preference>(wanted, Kind::kPreference);
  const Layout* layouts[] = {
      object_of<Layout>(a, Kind::kLayout), object_of<Layout>(b, Kind::kLayout),
      object_of<Layout>(c, Kind::kLayout), object_of<Layout>(d, Kind::kLayout)};
  if (!description || !preference || !layouts[0] || !layouts[1] || !layouts[2] || !layouts[3])
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "a handle of something else");
  if (requested <= 0 || !results || !count)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "no algorithms are asked for");
  *count = 0;
  const Problem problem{*description, *layouts[0], *layouts[1], *layouts[2], *layouts[3]};
  if (const cublasStatus_t status = check_problem(problem); status != CUBLAS_STATUS_SUCCESS)
    return status;
  for (std::size_t i = 0; i < kWays.size() && *count < requested; ++i) {
    if (!serves(kWays[i], problem, *preference)) continue;
    // What cannot be had stands among the results, too: their state says so.
    if (i % 2 == 1 && *count + 1 < requested) {
      results[*count] = {};
      results[(*count)++].state = CUBLAS_STATUS_NOT_SUPPORTED;
    }
    const Algorithm found = algorithm_of(kWays[i], problem);
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {};
    std::memcpy(&result.algo, &found, sizeof found);
    result.workspaceSize = found.workspace_bytes;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1;
  }
  return *count > 0 ? CUBLAS_STATUS_SUCCESS
                    : refuse(CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm serves this product");
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t) {
  if (!object_of<Library>(handle, Kind::kLibrary))
    return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "no handle of the library");
  const auto* description = object_of<Product>(product, Kind::kProduct);
  const Layout* layouts[] = {
      object_of<Layout>(a_layout, Kind::kLayout), object_of<Layout>(b_layout, Kind::kLayout),
      object_of<Layout>(c_layout, Kind::kLayout), object_of<Layout>(d_layout, Kind::kLayout)};
  if (!description || !layouts[0] || !layouts[1] || !layouts[2] || !layouts[3])
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "a handle of something else");
  if (!alpha || !beta || !a || !b || !d || !algo)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "an argument is missing");
  const Problem problem{*description, *layouts[0], *layouts[1], *layouts[2], *layouts[3]};
  if (const cublasStatus_t status = check_problem(problem); status != CUBLAS_STATUS_SUCCESS)
    return status;
  const float factor = read(alpha, CUDA_R_32F, 0), kept = read(beta, CUDA_R_32F, 0);
  if (kept != 0 && !c) return refuse(CUBLAS_STATUS_INVALID_VALUE, "C is missing");
  if (c == d && !(*layouts[2] == *layouts[3]))
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "C and D are one matrix of two layouts");
  Algorithm algorithm{};
  std::memcpy(&algorithm, algo, sizeof algorithm);
  if (const cublasStatus_t status =
          check_algorithm(problem, algorithm, a, b, c, d, workspace, workspace_bytes);
      status != CUBLAS_STATUS_SUCCESS)
    return status;
  // Anything may stand there between products.
  if (algorithm.workspace_bytes > 0) std::memset(workspace, 0xff, algorithm.workspace_bytes);
  multiply(problem, algorithm, factor, a, b, kept, c, d);
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"

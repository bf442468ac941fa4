// The fake's products: train/cpu's, by algorithms that differ in nothing but the workspace that
// they want. Those of 8 bits are made of the codes' values, in fp32.

#include <algorithm>
#include <array>
#include <bit>
#include <span>

#include "runtime/base/hash.h"
#include "tests/train/cuda/fake/fake_launch.h"
#include "train/cuda/kernels/fp8.h"
#include "train/cuda/kernels/scratch_sizes.h"
#include "train/tensor/convert.h"

namespace troupe::tests::fake {
namespace {

using train::Operators;

// Best first.
constexpr std::array<std::int64_t, 4> kWorkspaces = {8 << 20, 1 << 20, 64 << 10, 0};

// What an algorithm belongs to: the operands' sizes and types, by which libraries refuse others.
std::uint64_t mark_of(const TroupeCudaGemm& gemm) {
  return xxh3_64(std::as_bytes(std::span(&gemm, 1)));
}

// The fp32 values that TF32 units multiply: 10 bits of fraction, to nearest, ties to even.
void round_to_tf32(const float* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    to[i] = std::bit_cast<float>((bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu);
  }
}

int gemm_algorithms(TroupeCudaContext* context, const TroupeCudaGemm* gemm,
                    std::int64_t workspace_bytes, std::int32_t algorithms_max,
                    TroupeCudaAlgorithm* algorithms, std::int32_t* count) {
  if (const int code = state().enter("gemm_algorithms", context->device)) return code;
  *count = 0;
  if (gemm->arithmetic == TROUPE_CUDA_COMPUTE_FP8 && !state().options().fp8_algorithms)
    return TROUPE_CUDA_OK;
  if (gemm->epilogue != TROUPE_CUDA_EPILOGUE_NONE &&
      ((state().options().epilogues >> gemm->epilogue & 1) == 0 ||
       (gemm->epilogue != TROUPE_CUDA_EPILOGUE_BIAS && gemm->c_stride % 8 != 0)))
    return TROUPE_CUDA_OK;
  for (std::size_t i = 0; i < kWorkspaces.size() && *count < algorithms_max; ++i) {
    if (kWorkspaces[i] > workspace_bytes) continue;
    TroupeCudaAlgorithm& algorithm = algorithms[(*count)++];
    algorithm = {};
    algorithm.opaque[0] = i;
    algorithm.opaque[1] = mark_of(*gemm);
    algorithm.workspace_bytes = kWorkspaces[i];
  }
  return TROUPE_CUDA_OK;
}

train::DType dtype_of(int type) {
  return type == TROUPE_CUDA_BF16 ? train::DType::kBF16 : train::DType::kF32;
}

// Elements of a matrix of (rows, columns) as it lies in memory.
std::int64_t matrix_extent(std::int64_t rows, std::int64_t columns, bool transposed,
                           std::int64_t stride) {
  return transposed ? extent(columns, stride, rows) : extent(rows, stride, columns);
}

// With an epilogue: c's sums and bias are fp32 until they are stored, GELU is of them unrounded,
// its gradient of what was stored.
int multiply(const char* function, TroupeCudaStream* stream, const TroupeCudaGemm* given,
             const TroupeCudaAlgorithm* algorithm, const void* a, const void* b, const void* bias,
             void* gelu_input, void* c, void* workspace, std::int64_t workspace_bytes) {
  const TroupeCudaGemm g = *given;
  const bool adds_bias =
      g.epilogue == TROUPE_CUDA_EPILOGUE_BIAS || g.epilogue == TROUPE_CUDA_EPILOGUE_BIAS_GELU;
  const bool gelu = g.epilogue == TROUPE_CUDA_EPILOGUE_BIAS_GELU,
             gelu_gradient = g.epilogue == TROUPE_CUDA_EPILOGUE_GELU_GRADIENT;
  const std::int64_t needed = algorithm->workspace_bytes;
  const std::int64_t a_count = matrix_extent(g.m, g.k, g.transpose_a, g.a_stride),
                     b_count = matrix_extent(g.k, g.n, g.transpose_b, g.b_stride),
                     c_count = extent(g.m, g.c_stride, g.n);
  const bool bf16 = g.arithmetic == TROUPE_CUDA_COMPUTE_BF16;
  const int operands = bf16 ? TROUPE_CUDA_BF16 : TROUPE_CUDA_F32;
  const auto aligned = [&](const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) % static_cast<std::uintptr_t>(g.alignment_bytes) ==
           0;
  };
  Launch launch(stream, function);
  launch
      .requires_that(
          adds_bias == (bias != nullptr) && (gelu || gelu_gradient) == (gelu_input != nullptr),
          "a bias or GELU's input of an epilogue that has none, or none of one that has")
      .requires_that(!(adds_bias || gelu_gradient) || (!g.accumulate && g.alignment_bytes == 16 &&
                                                       aligned(bias) && aligned(gelu_input)),
                     "an epilogue of a product that is added to c, or not at 16 bytes")
      .requires_that(!gelu_input || g.c_stride % 8 == 0,
                     "GELU's input by a stride that is no multiple of 8")
      .needs(bias, g.n, g.c_type, "bias", !adds_bias)
      .needs(gelu_input, c_count, g.c_type, "gelu_input", !(gelu || gelu_gradient))
      .requires_that(
          algorithm->opaque[1] == mark_of(g) && algorithm->opaque[0] < kWorkspaces.size(),
          "an algorithm of another product")
      .requires_that(workspace_bytes >= needed, "less workspace than the algorithm needs")
      .requires_that(g.arithmetic != TROUPE_CUDA_COMPUTE_FP8, "operands of 8 bits without scales")
      .requires_that(g.a_type == operands && g.b_type == operands,
                     "operands of another type than is computed in")
      .requires_that(g.alignment_bytes > 0 && aligned(a) && aligned(b) && aligned(c),
                     "less alignment than was said")
      .activations_of(g.c_type)
      .needs(a, a_count, g.a_type, "a")
      .needs(b, b_count, g.b_type, "b")
      .needs(c, c_count, g.c_type, "c");
  if (needed > 0) launch.scratch(workspace, needed);
  return launch.run([=](Operators& cpu) {
    std::vector<float> a_rounded, b_rounded;
    const void *a_used = a, *b_used = b;
    if (g.arithmetic == TROUPE_CUDA_COMPUTE_TF32) {
      a_rounded.resize(static_cast<std::size_t>(a_count));
      b_rounded.resize(static_cast<std::size_t>(b_count));
      round_to_tf32(static_cast<const float*>(a), a_rounded.data(), a_count);
      round_to_tf32(static_cast<const float*>(b), b_rounded.data(), b_count);
      a_used = a_rounded.data(), b_used = b_rounded.data();
    }
    InOut result(g.c_type, c, c_count);
    cpu.gemm({.m = g.m,
              .n = g.n,
              .k = g.k,
              .a = a_used,
              .a_type = dtype_of(g.a_type),
              .a_stride = g.a_stride,
              .transpose_a = g.transpose_a != 0,
              .b = b_used,
              .b_type = dtype_of(g.b_type),
              .b_stride = g.b_stride,
              .transpose_b = g.transpose_b != 0,
              .c = result,
              .c_stride = g.c_stride,
              .accumulate = g.accumulate != 0,
              .arithmetic = bf16 ? train::Arithmetic::kBf16 : train::Arithmetic::kFp32});
    float* sums = result;
    if (adds_bias) cpu.add_bias(sums, g.c_stride, In(g.c_type, bias, g.n), g.m, g.n);
    if (!gelu && !gelu_gradient) return;
    InOut input(g.c_type, gelu_input, c_count);
    for (std::int64_t row = 0; row < g.m; ++row) {
      float *sum = sums + row * g.c_stride, *x = static_cast<float*>(input) + row * g.c_stride;
      if (gelu) {
        std::copy_n(sum, g.n, x);
        cpu.gelu_forward(x, sum, g.n);
      } else {
        std::vector<float> gradient(x, x + g.n);
        cpu.gelu_backward(gradient.data(), sum, train::Elements(), g.n);
        std::copy_n(gradient.data(), g.n, sum);
      }
    }
  });
}

int gemm(TroupeCudaStream* stream, const TroupeCudaGemm* given,
         const TroupeCudaAlgorithm* algorithm, const void* a, const void* b, void* c,
         void* workspace, std::int64_t workspace_bytes) {
  return multiply("gemm", stream, given, algorithm, a, b, nullptr, nullptr, c, workspace,
                  workspace_bytes);
}

int gemm_fused(TroupeCudaStream* stream, const TroupeCudaGemm* given,
               const TroupeCudaAlgorithm* algorithm, const void* a, const void* b, const void* bias,
               void* gelu_input, void* c, void* workspace, std::int64_t workspace_bytes) {
  return multiply("gemm_fused", stream, given, algorithm, a, b, bias, gelu_input, c, workspace,
                  workspace_bytes);
}

// --- products of 8 bits

namespace cuda = train::cuda;

std::uint32_t code_of(int format, float value) {
  return format == TROUPE_CUDA_E5M2 ? cuda::fp8_from_float<cuda::E5M2>(value)
                                    : cuda::fp8_from_float<cuda::E4M3>(value);
}
float value_of(int format, std::uint8_t code) {
  return format == TROUPE_CUDA_E5M2 ? cuda::float_from_fp8<cuda::E5M2>(code)
                                    : cuda::float_from_fp8<cuda::E4M3>(code);
}

int quantize(TroupeCudaStream* stream, const TroupeCudaQuantize* given, const void* x, void* out,
             float* scales, void* scratch) {
  const TroupeCudaQuantize q = *given;
  const std::int64_t out_rows = q.transpose ? q.columns : q.rows;
  const std::int64_t out_columns = q.transpose ? q.rows : q.columns;
  const std::int64_t count = extent(q.rows, q.stride, q.columns);
  return Launch(stream, "quantize")
      .activations_of(q.type)
      .requires_that(q.format == TROUPE_CUDA_E4M3 || q.format == TROUPE_CUDA_E5M2,
                     "a format that is none of 8 bits")
      .requires_that(q.stride >= q.columns && q.out_stride >= out_columns && q.out_stride % 16 == 0,
                     "rows longer than their distance, or not of 16 bytes")
      .requires_that(reinterpret_cast<std::uintptr_t>(out) % 16 == 0, "out is not at 16 bytes")
      .needs(x, count, q.type, "x")
      .needs(out, out_rows * q.out_stride, q.format, "out")
      .floats(scales, 2, "scales")
      .scratch(scratch, cuda::quantize_scratch_size())
      .run([=](Operators&) {
        const In values(q.type, x, count);
        const float* from = values;
        std::uint32_t greatest = 0;
        for (std::int64_t row = 0; row < q.rows; ++row)
          for (std::int64_t i = 0; i < q.columns; ++i)
            greatest = std::max(greatest, cuda::bits_of(from[row * q.stride + i]) & 0x7fffffffu);
        const cuda::Fp8Scale scale = q.format == TROUPE_CUDA_E5M2
                                         ? cuda::fp8_scale<cuda::E5M2>(greatest)
                                         : cuda::fp8_scale<cuda::E4M3>(greatest);
        scales[0] = scale.scale, scales[1] = scale.inverse;
        auto* codes = static_cast<std::uint8_t*>(out);
        for (std::int64_t row = 0; row < out_rows; ++row) {
          for (std::int64_t i = 0; i < q.out_stride; ++i) {
            const std::int64_t at = q.transpose ? i * q.stride + row : row * q.stride + i;
            codes[row * q.out_stride + i] = static_cast<std::uint8_t>(
                i < out_columns ? code_of(q.format, from[at] * scale.scale) : 0);
          }
        }
      });
}

// The operand's codes' values; rows of k.
std::vector<float> values_of(int format, const void* codes, std::int64_t rows, std::int64_t k,
                             std::int64_t stride) {
  std::vector<float> values(static_cast<std::size_t>(rows * k));
  const auto* from = static_cast<const std::uint8_t*>(codes);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < k; ++i)
      values[static_cast<std::size_t>(row * k + i)] = value_of(format, from[row * stride + i]);
  return values;
}

int gemm_scaled(TroupeCudaStream* stream, const TroupeCudaGemm* given,
                const TroupeCudaAlgorithm* algorithm, const void* a, const float* a_scale,
                const void* b, const float* b_scale, void* c, void* workspace,
                std::int64_t workspace_bytes) {
  const TroupeCudaGemm g = *given;
  const std::int64_t needed = algorithm->workspace_bytes;
  const std::int64_t c_count = extent(g.m, g.c_stride, g.n);
  const auto aligned = [](const void* at) {
    return reinterpret_cast<std::uintptr_t>(at) % 16 == 0;
  };
  const auto narrow = [](int type) { return type == TROUPE_CUDA_E4M3 || type == TROUPE_CUDA_E5M2; };
  Launch launch(stream, "gemm_scaled");
  launch
      .requires_that(
          algorithm->opaque[1] == mark_of(g) && algorithm->opaque[0] < kWorkspaces.size(),
          "an algorithm of another product")
      .requires_that(workspace_bytes >= needed, "less workspace than the algorithm needs")
      .requires_that(g.arithmetic == TROUPE_CUDA_COMPUTE_FP8 && narrow(g.a_type) &&
                         narrow(g.b_type) &&
                         (g.a_type == TROUPE_CUDA_E4M3 || g.b_type == TROUPE_CUDA_E4M3),
                     "operands that are not of 8 bits, or both E5M2")
      .requires_that(!g.transpose_a && g.transpose_b, "operands that are not rows of k")
      .requires_that(g.k % 16 == 0 && g.n % 16 == 0 && g.a_stride % 16 == 0 &&
                         g.b_stride % 16 == 0 && g.alignment_bytes == 16 && aligned(a) &&
                         aligned(b) && aligned(c) && g.c_stride * type_bytes(g.c_type) % 16 == 0,
                     "sizes or addresses that are no multiples of 16")
      .activations_of(g.c_type)
      .needs(a, extent(g.m, g.a_stride, g.k), g.a_type, "a")
      .needs(b, extent(g.n, g.b_stride, g.k), g.b_type, "b")
      .floats(a_scale, 1, "a_scale")
      .floats(b_scale, 1, "b_scale")
      .needs(c, c_count, g.c_type, "c");
  if (needed > 0) launch.scratch(workspace, needed);
  return launch.run([=](Operators& cpu) {
    const std::vector<float> a_values = values_of(g.a_type, a, g.m, g.k, g.a_stride);
    const std::vector<float> b_values = values_of(g.b_type, b, g.n, g.k, g.b_stride);
    std::vector<float> sums(static_cast<std::size_t>(g.m * g.n));
    cpu.gemm({.m = g.m,
              .n = g.n,
              .k = g.k,
              .a = a_values.data(),
              .a_stride = g.k,
              .b = b_values.data(),
              .b_stride = g.k,
              .transpose_b = true,
              .c = sums.data(),
              .c_stride = g.n});
    InOut result(g.c_type, c, c_count);
    float* to = result;
    const float scale = *a_scale * *b_scale;
    for (std::int64_t row = 0; row < g.m; ++row) {
      for (std::int64_t i = 0; i < g.n; ++i) {
        const float value = sums[static_cast<std::size_t>(row * g.n + i)] * scale;
        float& at = to[row * g.c_stride + i];
        at = g.accumulate ? at + value : value;
      }
    }
  });
}

}  // namespace

void fill_products(TroupeCudaTable& table) {
  table.gemm_algorithms = gemm_algorithms;
  table.gemm = gemm;
  table.quantize = quantize;
  table.quantize_scratch_bytes = cuda::quantize_scratch_size;
  table.gemm_scaled = gemm_scaled;
  table.gemm_fused = gemm_fused;
}

}  // namespace troupe::tests::fake

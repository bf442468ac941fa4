// The fake's products: train/cpu's, by algorithms that differ in nothing but the workspace that
// they want.

#include <algorithm>
#include <array>
#include <bit>
#include <span>

#include "runtime/base/hash.h"
#include "tests/train/cuda/fake/fake_launch.h"
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

int gemm(TroupeCudaStream* stream, const TroupeCudaGemm* given,
         const TroupeCudaAlgorithm* algorithm, const void* a, const void* b, void* c,
         void* workspace, std::int64_t workspace_bytes) {
  const TroupeCudaGemm g = *given;
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
  Launch launch(stream, "gemm");
  launch
      .requires_that(
          algorithm->opaque[1] == mark_of(g) && algorithm->opaque[0] < kWorkspaces.size(),
          "an algorithm of another product")
      .requires_that(workspace_bytes >= needed, "less workspace than the algorithm needs")
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
  });
}

}  // namespace

void fill_products(TroupeCudaTable& table) {
  table.gemm_algorithms = gemm_algorithms;
  table.gemm = gemm;
}

}  // namespace troupe::tests::fake

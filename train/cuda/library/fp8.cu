// Matrices of 8 bits for products in them.

#include "train/cuda/kernels/fp8.h"

#include <algorithm>

#include "train/cuda/kernels/scratch_sizes.h"
#include "train/cuda/library/launch.cuh"

namespace troupe::train::cuda {
namespace {

template <class T, int N>
__global__ void __launch_bounds__(kAmaxThreads)
    amax_kernel(Fp8Source<T> source, std::uint32_t* parts) {
  auto& shared = block_shared<AmaxShared>();
  amax_block<T, N>(Block<kAmaxThreads>{blockIdx.x}, shared, source, gridDim.x, parts);
}

template <class Format>
__global__ void __launch_bounds__(kAmaxThreads)
    scale_kernel(const std::uint32_t* parts, std::int64_t count, Fp8Scale* scale) {
  auto& shared = block_shared<AmaxShared>();
  scale_block<Format>(Block<kAmaxThreads>{blockIdx.x}, shared, parts, count, scale);
}

template <class Format, class T, bool kWhole>
__global__ void __launch_bounds__(kTransposeThreads)
    quantize_transposed_kernel(Quantize<Format, T> a) {
  auto& shared = block_shared<TransposeShared>();
  quantize_transposed_block<Format, T, kWhole>(Block<kTransposeThreads>{blockIdx.x, blockIdx.y},
                                               shared, a);
}

template <class T>
void find_parts(TroupeCudaStream* stream, const Fp8Source<T>& source, unsigned grid,
                std::uint32_t* parts) {
  if (packs_fit(source.columns, source.x) && packs_fit(source.stride))
    start_blocks(stream, amax_kernel<T, kPack>, {grid, kAmaxThreads}, source, parts);
  else
    start_blocks(stream, amax_kernel<T, 1>, {grid, kAmaxThreads}, source, parts);
}

template <bool kWhole, class Format, class T>
void round_all(TroupeCudaStream* stream, const Quantize<Format, T>& a, bool transpose) {
  if (transpose) {
    const dim3 grid(blocks(a.out_stride, kTransposeTile), blocks(a.source.columns, kTransposeTile));
    start_blocks(stream, quantize_transposed_kernel<Format, T, kWhole>, {grid, kTransposeThreads},
                 a);
  } else {
    for_each(stream, QuantizePack<Format, T, kWhole>{a}, a.source.rows * (a.out_stride / kPack));
  }
}

static_assert(sizeof(Fp8Scale) == 2 * sizeof(float));

int quantize(TroupeCudaStream* stream, const TroupeCudaQuantize* matrix, const void* x, void* out,
             float* scales, void* scratch) {
  constexpr const char* kWhat = "quantize";
  TROUPE_CUDA_RETURN_IF_FAILED(enter(kWhat, stream));
  const TroupeCudaQuantize& m = *matrix;
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "rows", m.rows));
  TROUPE_CUDA_RETURN_IF_FAILED(need_positive(kWhat, "columns", m.columns));
  if (m.stride < m.columns || m.out_stride < (m.transpose ? m.rows : m.columns))
    return fail(TROUPE_CUDA_INVALID, "quantize: rows longer than their distance");
  if (m.out_stride % 16 != 0 || !packs_fit(0, out))
    return fail(TROUPE_CUDA_INVALID, "quantize: rows of `out` begin at multiples of 16 bytes");
  if (m.format != TROUPE_CUDA_E4M3 && m.format != TROUPE_CUDA_E5M2)
    return fail(TROUPE_CUDA_INVALID, "quantize: the format is E4M3 or E5M2");
  auto* parts = static_cast<std::uint32_t*>(scratch);
  auto* scale = reinterpret_cast<Fp8Scale*>(scales);
  auto* codes = static_cast<std::uint8_t*>(out);
  // A part for every block: of few elements, fewer.
  const auto grid = static_cast<unsigned>(std::min<std::int64_t>(
      kAmaxParts, (m.rows * m.columns + kAmaxThreads * kPack - 1) / (kAmaxThreads * kPack)));
  return with_type(kWhat, m.type, [&]<class T>(Tag<T>) {
    const Fp8Source<T> source{static_cast<const T*>(x), m.rows, m.columns, m.stride};
    find_parts(stream, source, grid, parts);
    const auto finish = [&]<class Format>(Tag<Format>) {
      start_blocks(stream, scale_kernel<Format>, {1, kAmaxThreads}, parts, grid, scale);
      const Quantize<Format, T> a{source, scale, codes, m.out_stride};
      if (packs_fit(m.stride, x))
        round_all<true>(stream, a, m.transpose != 0);
      else
        round_all<false>(stream, a, m.transpose != 0);
    };
    if (m.format == TROUPE_CUDA_E4M3)
      finish(Tag<E4M3>{});
    else
      finish(Tag<E5M2>{});
    return launched(kWhat, m.rows, m.columns);
  });
}

}  // namespace

void fill_fp8(TroupeCudaTable& table) {
  table.quantize = quantize;
  table.quantize_scratch_bytes = quantize_scratch_size;
}

}  // namespace troupe::train::cuda
